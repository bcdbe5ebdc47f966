/*
 * PCCL: fault-tolerant collective communication over the public internet. The C interface.
 *
 * C99 and C++17; needs no other header of this library. Programs written for PCCL 1.0 compile and link against it
 * unchanged: part one is that interface, part two is what is new.
 *
 * Course of a worker: pcclInit, pcclCreateCommunicator, pcclConnect; then in a loop pcclUpdateTopology (in the first turn
 * neither this nor pcclArePeersPending: the others, who have just admitted this peer, are past it), read the world size,
 * synchronise the state, compute, all-reduce, raise the state's revision; at the end pcclDestroyCommunicator.
 * An all-reduce that gave pcclRankConnectionLost is called again at once, while the world size is above one, and not from
 * the top of the loop: what has been synchronised at a revision cannot be again. Who is left alone raises it all the same.
 * examples/c/worker.c is one to start from.
 *
 * Every function returns one of the thirteen results; none ends the process, raises a signal or throws. After a failure
 * pcclGetLastError says in words what happened, where, and at which peer.
 *
 * Null pointers, communicators that were destroyed, and values outside of an enumeration are pcclInvalidArgument.
 *
 * Threads: every function may be called from every thread, except from a log callback. The members of a run must make
 * the same unanimous calls (update, optimise, peers pending) in the same order; those and the synchronisation of the
 * state are made by one thread at a time. Collectives may run beside one another, and beside pcclArePeersPending.
 * The library's own threads block all signals. Those of a communicator, pccl-control and pccl-data, and of a master,
 * pccl-master, have ended when it is destroyed; those of a synchronisation, pccl-sync, pccl-state and pccl-digest, when it
 * returns. Only pccl-resolve, which looks up a host name, ends when the system has answered.
 *
 * Limits: without descriptors, threads or memory calls give pcclInternalError or their own failure. What is under way then
 * comes to its end in 2 MiB that the library has set apart; should those not suffice, the process ends. And where the
 * library was opened with dlopen rather than linked, glibc ends the process if a thread comes to it for the first time
 * and there is no memory left.
 *
 * Fork: in the child, communicators and masters of the parent give pcclInvalidUsage; destroying them there frees nothing
 * and harms nobody.
 */
#ifndef PCCL_H
#define PCCL_H

#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifndef PCCL_EXPORT
#if defined(_WIN32) && !defined(PCCL_STATIC)
#define PCCL_EXPORT __declspec(dllimport)
#elif defined(__GNUC__)
#define PCCL_EXPORT __attribute__((visibility("default")))
#else
#define PCCL_EXPORT
#endif
#endif

/* Marks a pointer that may be null. */
#define PCCL_NULLABLE

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------------------ */
/* Part one: the interface of PCCL 1.0                                                                                  */
/* ------------------------------------------------------------------------------------------------------------------ */

/* ---- Addresses ---- */

typedef enum ccoip_inet_protocol_t {
    inetIPv4 = 0,
    inetIPv6 = 1
} ccoip_inet_protocol_t;

/* Octets in network order: {127, 0, 0, 1} is this host. */
typedef struct ccoip_ipv4_address_t {
    uint8_t data[4];
} ccoip_ipv4_address_t;

typedef struct ccoip_ipv6_address_t {
    uint8_t data[16];
} ccoip_ipv6_address_t;

/* Both addresses are always there; `protocol` says which one counts. */
typedef struct ccoip_inet_address_t {
    ccoip_inet_protocol_t protocol;
    ccoip_ipv4_address_t ipv4;
    ccoip_ipv6_address_t ipv6;
} ccoip_inet_address_t;

/* The port is in the order of the host. */
typedef struct ccoip_socket_address_t {
    ccoip_inet_address_t inet;
    uint16_t port;
} ccoip_socket_address_t;

/* ---- Enumerations ---- */

typedef enum pcclResult_t {
    pcclSuccess = 0,
    /* pcclInit was not called. */
    pcclNotInitialized = 1,
    /* A fault of this library, or the system refused memory, a thread or a descriptor. */
    pcclInternalError = 2,
    /* An argument is wrong, or the members' arguments differ. Calling again does not help. */
    pcclInvalidArgument = 3,
    /* The call does not fit the state of the communicator or master. */
    pcclInvalidUsage = 4,
    /* The group has no other member. */
    pcclTooFewPeers = 5,
    pcclMasterConnectionFailed = 6,
    /* Never given. */
    pcclRankConnectionFailed = 7,
    /* A collective failed, at all members alike: a member was lost, gave up, or joined. Call again. */
    pcclRankConnectionLost = 8,
    /* Never given. */
    pcclNoSharedStateAvailable = 9,
    /* Collectives were launched and not awaited yet. */
    pcclPendingAsyncOps = 10,
    pcclUpdateTopologyFailed = 11,
    pcclTopologyOptimizationFailed = 12
} pcclResult_t;

typedef enum pcclDataType_t {
    pcclUint8 = 0,
    pcclInt8 = 1,
    pcclInt16 = 2,
    pcclUint16 = 3,
    pcclUint32 = 4,
    pcclInt32 = 5,
    pcclUint64 = 6,
    pcclInt64 = 7,
    pcclFloat16 = 8,
    pcclBFloat16 = 9,
    pcclFloat = 10,
    pcclDouble = 11
} pcclDataType_t;

typedef enum pcclDeviceType_t {
    pcclDeviceCpu = 0,
    /* pcclGetBuildInfo says whether this build takes it. */
    pcclDeviceCuda = 1
} pcclDeviceType_t;

/* Integers wrap; their average is the wrapped sum, divided and truncated to zero. */
typedef enum pcclRedOp_t {
    pcclSum = 0,
    pcclAvg = 1,
    pcclProd = 2,
    pcclMax = 3,
    pcclMin = 4
} pcclRedOp_t;

typedef enum pcclAttribute_t {
    /* Members of the run. */
    PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1,
    /* Members of the own group, the caller included. */
    PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,
    PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,
    PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4
} pcclAttribute_t;

typedef enum pcclSharedStateSyncStrategy_t {
    /* The content that most members hold goes to all others. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0,
    /* The caller never sends, and its content is no candidate. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,
    /* The caller never receives; success means that all hold its content now. */
    PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2
} pcclSharedStateSyncStrategy_t;

/* Accepted and without effect. */
typedef enum pcclDistributionHint_t {
    pcclDistributionNone = 0,
    pcclDistributionNormal = 1,
    pcclDistributionUniform = 2
} pcclDistributionHint_t;

typedef enum pcclQuantizationAlgorithm_t {
    pcclQuantNone = 0,
    pcclQuantMinMax = 1,
    pcclQuantZeroPointScale = 2
} pcclQuantizationAlgorithm_t;

/* ---- Structures ---- */

typedef struct pcclComm_t pcclComm_t;
typedef struct pcclMasterInstanceState_t pcclMasterInstance_t;
typedef struct pcclRankInfo_t pcclRankInfo_t;

typedef struct pcclRankUuid_t {
    uint8_t data[16];
} pcclRankUuid_t;

typedef struct pcclCommCreateParams_t {
    ccoip_socket_address_t master_address;
    /* Collectives and state synchronisation happen among the members of one group. */
    uint32_t peer_group;
    /* Connections to each neighbour; zero chooses. */
    uint32_t p2p_connection_pool_size;
} pcclCommCreateParams_t;

typedef struct pcclReduceInfo_t {
    /* How many members contributed; what an average was divided by. */
    uint32_t local_world_size;
    /* Bytes of data that this peer sent and received. */
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclReduceInfo_t;

typedef struct pcclReduceOperandDescriptor_t {
    pcclDataType_t datatype;
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

/*
 * How data travels. With pcclQuantNone the other field has no effect. Integer data with an algorithm, and zero point and
 * scale with pcclProd, pcclMax or pcclMin, are pcclInvalidArgument. Types of 32 or 64 bits, or as wide as the data, send
 * the data as it is; other floating point types are pcclInvalidArgument. All other combinations are computed, from and
 * to every type: results are the same at all members, to the bit. docs/from-upstream.md says what they are.
 */
typedef struct pcclQuantizationOptions_t {
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

/* Must be the same at all members, or the operation fails for all with pcclInvalidArgument. */
typedef struct pcclReduceDescriptor_t {
    /* Elements; zero is allowed. */
    size_t count;
    pcclRedOp_t op;
    /* Names the operation. One of a name is open at a time; different ones may overlap. */
    uint64_t tag;
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

typedef struct pcclReduceSingleDescriptor_t {
    void *sendbuf;
    void *recvbuf;
    pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

/* A plain value; nothing to free. */
typedef struct pcclAsyncReduceOp_t {
    pcclComm_t *comm;
    uint64_t tag;
} pcclAsyncReduceOp_t;

typedef struct pcclTensorInfo_t {
    /* UTF-8. Members' tensors are matched by name; their order has no meaning. */
    const char *name;
    void *data;
    size_t count;
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    /* The members' contents may differ; they go only to those that are out of date. */
    bool allow_content_inequality;
} pcclTensorInfo_t;

typedef struct pcclSharedState_t {
    /*
     * The program raises it by one between two synchronisations that succeed: only content at the revision behind the
     * last one's can be elected. Set to the elected revision on success.
     */
    uint64_t revision;
    size_t count;
    pcclTensorInfo_t *infos;
} pcclSharedState_t;

typedef struct pcclSharedStateSyncInfo_t {
    uint64_t tx_bytes;
    uint64_t rx_bytes;
} pcclSharedStateSyncInfo_t;

typedef struct pcclBuildInfo_t {
    bool has_cuda_support;
} pcclBuildInfo_t;

/* ---- Library ---- */

/* Always succeeds, and may be repeated. Reads PCCL_LOG_LEVEL. */
PCCL_EXPORT pcclResult_t pcclInit(void);

PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t *info);

/* ---- Communicators ---- */

/* Makes a communicator; nothing goes over the network yet. */
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t *params, pcclComm_t **comm_out);

/*
 * Leaves the run in good order and frees the communicator. Open collectives are cancelled for all members; calls of other
 * threads on it return. Takes bounded time, also when the master is gone. Afterwards the pointer is pcclInvalidArgument.
 */
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t *communicator);

/*
 * Changes only when connect, update, optimise, synchronise or a failed collective returns, and then to the same values at
 * all members. A peer that was evicted sees ones.
 */
PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t *communicator, pcclAttribute_t attribute, int *value_out);

/*
 * Joins the run. The first peer is a member at once; later ones return when the members admit them by pcclUpdateTopology.
 * After pcclMasterConnectionFailed the same communicator may try again. On a member: pcclInvalidUsage.
 */
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t *communicator);

/*
 * Admits the newcomers that wait. Returns when all members of the run have called it. On a peer that was evicted it joins
 * again. Failures: pcclPendingAsyncOps, pcclUpdateTopologyFailed.
 */
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t *communicator);

/* Whether newcomers wait, the same at all members, who all call it. May run beside collectives. */
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t *communicator, bool *pending_out);

/* Settles on an order of the ring. Returns when all members have called it. Alone: pcclInvalidUsage. */
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t *communicator);

/* ---- Collectives ---- */

/*
 * Combines the members' `sendbuf`, element by element, into every member's `recvbuf`, with the same bits everywhere.
 * `sendbuf` is not changed, unless it is `recvbuf`; in place, a failed operation leaves the buffer as it was. Buffers that
 * overlap in part are pcclInvalidArgument.
 */
PCCL_EXPORT pcclResult_t pcclAllReduce(const void *sendbuf, void *recvbuf, const pcclReduceDescriptor_t *descriptor,
                                       const pcclComm_t *communicator,
                                       pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/*
 * Launches one. Until it has been awaited, the buffers belong to the library and the tag is in use (a second launch is
 * pcclInvalidArgument).
 */
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void *sendbuf, void *recvbuf,
                                            const pcclReduceDescriptor_t *descriptor, const pcclComm_t *communicator,
                                            pcclAsyncReduceOp_t *reduce_handle_out);

/*
 * Waits for the end of a launched operation. A failure, a handle that nothing was launched for, and a second wait on the
 * same one are pcclRankConnectionLost; operations that differ between members are pcclInvalidArgument.
 */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle,
                                              pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/*
 * Carries out several operations, each with a tag of its own, and repeats those that fail since a member was lost, until
 * all have succeeded. All members give the same ones in the same order. pcclTooFewPeers if the caller is left alone.
 * When it returns, nothing is in flight; the operations that succeeded hold their result, all others are as they were.
 */
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t *descriptors, size_t count,
                                                        const pcclComm_t *communicator,
                                                        pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out,
                                                        int max_in_flight);

/* ---- Shared state ---- */

/*
 * Brings the tensors of all members of the group to the same content. Failures other than of arguments are
 * pcclInvalidUsage. If it failed at all members (one was lost, or none is at the revision that is due), they are members
 * still. If only this one failed (its tensors or revision break a rule, it was outvoted, or could not fetch), it has left
 * the run, and pcclUpdateTopology joins again. That call is the next one in both cases.
 */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t *communicator, pcclSharedState_t *shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t *PCCL_NULLABLE sync_info_out);

/* ---- Masters ---- */

/* Makes a master; it does not listen yet. */
PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address, pcclMasterInstance_t **master_out);

/* Starts it and returns. If it cannot listen, or ran already: pcclInvalidUsage; such an instance stays unusable. */
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t *master);

/* Asks it to end: all calls of all members fail at once. May be repeated. */
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t *master);

/* Waits for its end; does not bring it about. */
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t *master);

/* Ends it if it runs, and frees it. */
PCCL_EXPORT pcclResult_t pcclDestroyMaster(pcclMasterInstance_t *master);

/* ------------------------------------------------------------------------------------------------------------------ */
/* Part two: what is new                                                                                                */
/* ------------------------------------------------------------------------------------------------------------------ */

/*
 * Structures that may grow begin with their own size: start from the INIT value, then set fields. A field that is zero
 * has its default.
 */

/* ---- Library ---- */

/* "2.0.0", perhaps with a suffix. Static text. */
PCCL_EXPORT const char *pcclGetVersion(void);

/*
 * Why the last call of this thread failed, in words; the empty text after a success. Valid until the thread's next call.
 * Never null. The only functions that leave it alone are this one, pcclGetVersion and pcclGetResultName.
 */
PCCL_EXPORT const char *pcclGetLastError(void);

/* "pcclSuccess" and so on; "unknown" for other numbers. Static text. */
PCCL_EXPORT const char *pcclGetResultName(pcclResult_t result);

typedef enum pcclLogLevel_t {
    pcclLogOff = 0,
    pcclLogError = 1,
    pcclLogWarn = 2,
    pcclLogInfo = 3,
    pcclLogDebug = 4,
    pcclLogTrace = 5
} pcclLogLevel_t;

/*
 * Takes a line of the log, without a line break. Called by any thread of the library or the program, one call at a time.
 * Must not call this library (it gets pcclInvalidUsage) and should return soon.
 */
typedef void (*pcclLogCallback_t)(pcclLogLevel_t level, const char *message, void *user_data);

/*
 * Sends the log, up to a level, to a callback; a null callback sends it back to standard error. When it returns, the
 * callback before is not running any more. Needs no pcclInit; the environment does not override it later.
 */
PCCL_EXPORT pcclResult_t pcclSetLogCallback(pcclLogCallback_t PCCL_NULLABLE callback, void *PCCL_NULLABLE user_data,
                                            pcclLogLevel_t level);

/* ---- Communicators ---- */

typedef struct pcclCommConfig_t {
    size_t struct_size;
    /* "host:port", "1.2.3.4:port" or "[::1]:port", or a join ticket. The environment variable PCCL_TICKET wins. */
    const char *master;
    /* What operators shall call this peer. */
    const char *PCCL_NULLABLE name;
    /* "host:port" to listen on; port 0 takes any, "[::]:0" both families. Default: the address that reaches the master,
     * any port. */
    const char *PCCL_NULLABLE listen;
    /* "host:port", several with commas: told to the other members before the address that the master sees. Port 0 is the
     * one that is listened on. */
    const char *PCCL_NULLABLE announce;
    uint32_t peer_group;
    /* Connections to each neighbour. */
    uint32_t pool_size;
    /* Bytes of one data frame, a multiple of 8. */
    uint32_t segment_bytes;
    uint32_t reserved;
    /* As by pcclSetTimeLimit. */
    uint64_t time_limit_ms;
} pcclCommConfig_t;

#define PCCL_COMM_CONFIG_INIT {sizeof(pcclCommConfig_t), 0, 0, 0, 0, 0, 0, 0, 0, 0}

PCCL_EXPORT pcclResult_t pcclCreateCommunicatorEx(const pcclCommConfig_t *config, pcclComm_t **comm_out);

/*
 * Longest time for every later blocking call on this communicator and every operation launched later; zero waits as long
 * as the others live. A call whose time is up asks the master for an end and returns the verdict, which holds for all
 * members and may be success.
 */
PCCL_EXPORT pcclResult_t pcclSetTimeLimit(pcclComm_t *communicator, uint64_t milliseconds);

/* Own number in the run: never given twice. Not a member: pcclInvalidUsage. */
PCCL_EXPORT pcclResult_t pcclGetMemberId(const pcclComm_t *communicator, uint64_t *id_out);

/* Own place in the group's ring, from zero. Not a member: pcclInvalidUsage. */
PCCL_EXPORT pcclResult_t pcclGetRank(const pcclComm_t *communicator, uint32_t *rank_out);

typedef struct pcclMemberInfo_t {
    uint64_t id;
    /* Cut to fit; ends with a zero. */
    char name[64];
    /* Its first address, as "address:port". */
    char address[64];
} pcclMemberInfo_t;

/*
 * The group's members in the order of the ring: the first `capacity` go to `members` (null if zero), `count_out` gets how
 * many there are.
 */
PCCL_EXPORT pcclResult_t pcclGetMembers(const pcclComm_t *communicator, pcclMemberInfo_t *PCCL_NULLABLE members,
                                        size_t capacity, size_t *count_out);

/* ---- Shared state ---- */

typedef struct pcclSyncProgress_t {
    /* Zero: nothing is being fetched, or it is not known yet what. */
    uint64_t total_bytes;
    uint64_t fetched_bytes;
    uint64_t elapsed_ms;
    uint64_t bytes_per_second;
    /* UINT64_MAX: nothing has come yet. */
    uint64_t left_ms;
} pcclSyncProgress_t;

/* How far pcclSynchronizeSharedState has come that another thread is in. */
PCCL_EXPORT pcclResult_t pcclGetSyncProgress(const pcclComm_t *communicator, pcclSyncProgress_t *progress_out);

typedef struct pcclSyncSource_t {
    /* As by pcclGetMemberId. */
    uint64_t member;
    uint64_t bytes;
} pcclSyncSource_t;

/*
 * Who gave this peer how much in its last synchronisation that succeeded: the first `capacity` go to `sources` (null if
 * zero), `count_out` gets how many there are.
 */
PCCL_EXPORT pcclResult_t pcclGetSyncSources(const pcclComm_t *communicator, pcclSyncSource_t *PCCL_NULLABLE sources,
                                            size_t capacity, size_t *count_out);

typedef struct pcclDivergence_t {
    /* Cut to fit; ends with a zero. */
    char tensor[64];
    /* From the first to behind the last byte that differed. */
    uint64_t begin;
    uint64_t end;
    /* Last revision at which all had the same, if `has_since`; otherwise this was the first synchronisation. */
    uint64_t since;
    /* One of the members that had the elected content, and how many they were. */
    uint64_t holder;
    uint64_t holders;
    bool has_since;
} pcclDivergence_t;

/*
 * Tensors of this peer that were not the elected ones in its last synchronisation that succeeded, although it was at the
 * same revision: memory, a computation or a program has gone wrong. As pcclGetSyncSources.
 */
PCCL_EXPORT pcclResult_t pcclGetDivergences(const pcclComm_t *communicator, pcclDivergence_t *PCCL_NULLABLE divergences,
                                            size_t capacity, size_t *count_out);

/* ---- Collectives ---- */

/* Memory, and where it is. This version takes pcclDeviceCpu with device_index 0 and no stream. */
typedef struct pcclBuffer_t {
    void *data;
    pcclDeviceType_t device_type;
    int32_t device_index;
    /* The device's stream in whose order the memory is ready, and the result is to be. */
    void *PCCL_NULLABLE stream;
} pcclBuffer_t;

/*
 * By which pattern data moves. Zero takes that of the environment variable PCCL_ALGORITHM (ring, star or direct), which all
 * other calls take too; if it is not set, the library chooses, by the size of the tensor and the links of the group. An
 * operation that asks for what the links do not allow is pcclInvalidArgument at all members.
 */
typedef enum pcclAlgorithm_t {
    pcclAlgorithmAutomatic = 0,
    pcclAlgorithmRing = 1,
    /* Through one member: two hops. */
    pcclAlgorithmStar = 2,
    /* Every pair exchanges: two hops, and at most two quantisations. */
    pcclAlgorithmDirect = 3,
} pcclAlgorithm_t;

typedef struct pcclReduceCall_t {
    size_t struct_size;
    pcclBuffer_t send;
    pcclBuffer_t recv;
    pcclReduceDescriptor_t descriptor;
    /* Of this operation; zero takes that of the communicator. */
    uint64_t time_limit_ms;
    /* A pcclAlgorithm_t. As the descriptor, it must be the same at all members. */
    uint32_t algorithm;
    uint32_t reserved;
} pcclReduceCall_t;

/* As pcclAllReduceAsync. Set struct_size to sizeof(pcclReduceCall_t) and everything else to zero first. */
PCCL_EXPORT pcclResult_t pcclAllReduceAsyncEx(const pcclReduceCall_t *call, const pcclComm_t *communicator,
                                              pcclAsyncReduceOp_t *reduce_handle_out);

/*
 * As pcclAwaitAsyncReduce, for a limited time. If that passes first: pcclSuccess with `done_out` false; the operation goes
 * on, and is still to be awaited.
 */
PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduceFor(const pcclAsyncReduceOp_t *reduce_handle, uint64_t milliseconds,
                                                 bool *done_out, pcclReduceInfo_t *PCCL_NULLABLE reduce_info_out);

/* Whether an operation has ended, well or not. It is still to be awaited. */
PCCL_EXPORT pcclResult_t pcclTestAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle, bool *done_out);

/* Asks for the end of an operation, for all members, and returns. Awaiting it gives the verdict. */
PCCL_EXPORT pcclResult_t pcclCancelAsyncReduce(const pcclAsyncReduceOp_t *reduce_handle);

/* ---- Masters ---- */

typedef struct pcclMasterConfig_t {
    size_t struct_size;
    /* "host:port"; port 0 takes any free one. Required. */
    const char *listen;
    /* Silence after which a peer counts as lost; all other limits derive from it. Default 5,000. */
    uint64_t peer_timeout_ms;
} pcclMasterConfig_t;

#define PCCL_MASTER_CONFIG_INIT {sizeof(pcclMasterConfig_t), 0, 0}

PCCL_EXPORT pcclResult_t pcclCreateMasterEx(const pcclMasterConfig_t *config, pcclMasterInstance_t **master_out);

/* The port that a running master listens on. */
PCCL_EXPORT pcclResult_t pcclGetMasterPort(const pcclMasterInstance_t *master, uint16_t *port_out);

#ifdef __cplusplus
}
#endif

#endif /* PCCL_H */
