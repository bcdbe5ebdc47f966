/* Null and nonsense arguments, the order of the checks, life and death of handles: codes as documented, and no crash. */
#include "harness.h"

#include <sys/wait.h>
#include <unistd.h>

static float send_buffer[16], recv_buffer[16];

static pcclComm_t *bogus_comm(void) { return (pcclComm_t *)(void *)send_buffer; }

/* Everything that a communicator can be asked, with one result. */
static void every_call(pcclResult_t wanted, pcclComm_t *comm) {
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 16, pcclSum, 1);
    pcclReduceOpDescriptor_t op;
    pcclAsyncReduceOp_t handle;
    pcclSharedState_t state;
    pcclReduceCall_t call;
    size_t count;
    uint64_t id;
    pcclSyncProgress_t progress;
    uint32_t rank;
    bool flag;
    int value;
    memset(&op, 0, sizeof op);
    memset(&state, 0, sizeof state);
    memset(&call, 0, sizeof call);
    op.sendbuf = send_buffer;
    op.recvbuf = recv_buffer;
    op.descriptor = d;
    call.struct_size = sizeof call;
    handle.comm = comm;
    handle.tag = 1;
    EXPECT(wanted, pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value));
    EXPECT(wanted, pcclUpdateTopology(comm));
    EXPECT(wanted, pcclArePeersPending(comm, &flag));
    EXPECT(wanted, pcclOptimizeTopology(comm));
    EXPECT(wanted, pcclAllReduce(send_buffer, recv_buffer, &d, comm, NULL));
    EXPECT(wanted, pcclAllReduceAsync(send_buffer, recv_buffer, &d, comm, &handle));
    EXPECT(wanted, pcclAwaitAsyncReduce(&handle, NULL));
    EXPECT(wanted, pcclAllReduceMultipleWithRetry(&op, 1, comm, NULL, 1));
    EXPECT(wanted, pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    EXPECT(wanted, pcclGetMemberId(comm, &id));
    EXPECT(wanted, pcclGetRank(comm, &rank));
    EXPECT(wanted, pcclGetMembers(comm, NULL, 0, &count));
    EXPECT(wanted, pcclGetSyncProgress(comm, &progress));
    EXPECT(wanted, pcclGetSyncSources(comm, NULL, 0, &count));
    EXPECT(wanted, pcclGetDivergences(comm, NULL, 0, &count));
    EXPECT(wanted, pcclAllReduceAsyncEx(&call, comm, &handle));
    EXPECT(wanted, pcclAwaitAsyncReduceFor(&handle, 1, &flag, NULL));
    EXPECT(wanted, pcclTestAsyncReduce(&handle, &flag));
    EXPECT(wanted, pcclCancelAsyncReduce(&handle));
}

static void before_init(void) {
    pcclComm_t *comm = NULL;
    pcclBuildInfo_t info;
    pcclCommCreateParams_t params;
    memset(&params, 0, sizeof params);
    EXPECT(pcclNotInitialized, pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclNotInitialized, pcclDestroyCommunicator(NULL));
    EXPECT(pcclNotInitialized, pcclConnect(NULL));
    every_call(pcclNotInitialized, NULL);
    REQUIRE(strstr(pcclGetLastError(), "pcclInit") != NULL);
    OK(pcclGetBuildInfo(&info));
    REQUIRE(!info.has_cuda_support);
    EXPECT(pcclInvalidArgument, pcclGetBuildInfo(NULL));
    OK(pcclInit());
    OK(pcclInit());
}

static void communicators(void) {
    pcclCommCreateParams_t params;
    pcclCommConfig_t config = PCCL_COMM_CONFIG_INIT;
    pcclComm_t *comm = NULL, *first;
    memset(&params, 0, sizeof params);
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(NULL, &comm));
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, NULL));
    params.master_address.inet.protocol = (ccoip_inet_protocol_t)7;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclInvalidArgument, pcclCreateCommunicatorEx(NULL, &comm));
    EXPECT(pcclInvalidArgument, pcclCreateCommunicatorEx(&config, &comm));
    config.master = "127.0.0.1:1";
    config.listen = "nowhere";
    EXPECT(pcclInvalidArgument, pcclCreateCommunicatorEx(&config, &comm));
    config.listen = NULL;
    config.reserved = 1;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicatorEx(&config, &comm));
    config.reserved = 0;
    config.struct_size = 8;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicatorEx(&config, &comm));
    REQUIRE(comm == NULL);

    EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(NULL));
    EXPECT(pcclInvalidArgument, pcclConnect(NULL));
    every_call(pcclInvalidArgument, NULL);
    every_call(pcclInvalidArgument, bogus_comm());
    EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(bogus_comm()));

    /* Never connected: no run to use, and nothing in the way of its end. */
    comm = first = new_peer(1, 0);
    every_call(pcclInvalidUsage, comm);
    OK(pcclSetTimeLimit(comm, 1000));
    OK(pcclDestroyCommunicator(comm));
    every_call(pcclInvalidArgument, comm);
    EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(comm));
    EXPECT(pcclInvalidArgument, pcclConnect(comm));
    comm = new_peer(1, 0);
    REQUIRE(comm != first);
    OK(pcclDestroyCommunicator(comm));
}

static void connecting(void) {
    uint16_t port;
    pcclMasterInstance_t *master = start_master(&port);
    pcclComm_t *comm;
    int i;
    stop_master(master);
    comm = new_peer(port, 0);
    for (i = 0; i < 2; i++) {
        EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
        REQUIRE(strstr(pcclGetLastError(), "127.0.0.1") != NULL);
    }
    every_call(pcclInvalidUsage, comm);
    /* The same communicator connects when there is a master. */
    {
        pcclMasterInstance_t *next = NULL;
        OK(pcclCreateMaster(loopback(port), &next));
        OK(pcclRunMaster(next));
        OK(pcclConnect(comm));
        EXPECT(pcclInvalidUsage, pcclConnect(comm));
        REQUIRE(attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 1);
        /* The master goes first: what needs it fails, what does not works, and the end is clean. */
        stop_master(next);
        EXPECT(pcclUpdateTopologyFailed, pcclUpdateTopology(comm));
        REQUIRE(strstr(pcclGetLastError(), "was stopped") != NULL);
        REQUIRE(attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 1);
        OK(pcclDestroyCommunicator(comm));
    }
}

static void alone(void) {
    uint16_t port;
    pcclMasterInstance_t *master = start_master(&port);
    pcclComm_t *comm = new_peer(port, 3);
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 16, pcclSum, 1);
    pcclReduceDescriptor_t wrong;
    pcclReduceOpDescriptor_t ops[2];
    pcclReduceInfo_t info;
    pcclAsyncReduceOp_t handle;
    pcclMemberInfo_t member;
    size_t count = 0;
    uint64_t id = 77;
    uint32_t rank = 77;
    bool pending = true;
    int value = 0;
    memset(ops, 0, sizeof ops);
    OK(pcclConnect(comm));

    EXPECT(pcclInvalidArgument, pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, NULL));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(comm, (pcclAttribute_t)0, &value));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(comm, (pcclAttribute_t)99, &value));
    REQUIRE(attribute(comm, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS) == 1);
    EXPECT(pcclInvalidArgument, pcclArePeersPending(comm, NULL));
    OK(pcclArePeersPending(comm, &pending));
    REQUIRE(!pending);
    OK(pcclUpdateTopology(comm));
    EXPECT(pcclInvalidUsage, pcclOptimizeTopology(comm));
    OK(pcclGetMemberId(comm, &id));
    OK(pcclGetRank(comm, &rank));
    REQUIRE(rank == 0);
    OK(pcclGetMembers(comm, &member, 1, &count));
    REQUIRE(count == 1 && member.id == id);
    EXPECT(pcclInvalidArgument, pcclGetMembers(comm, NULL, 1, &count));
    EXPECT(pcclInvalidArgument, pcclGetSyncProgress(comm, NULL));
    EXPECT(pcclInvalidArgument, pcclGetSyncSources(comm, NULL, 1, &count));
    EXPECT(pcclInvalidArgument, pcclGetDivergences(comm, NULL, 0, NULL));

    EXPECT(pcclTooFewPeers, pcclAllReduce(send_buffer, recv_buffer, &d, comm, &info));
    EXPECT(pcclTooFewPeers, pcclAllReduceAsync(send_buffer, recv_buffer, &d, comm, &handle));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(send_buffer, recv_buffer, &d, comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(send_buffer, recv_buffer, NULL, comm, &handle));
    EXPECT(pcclInvalidArgument, pcclAllReduce(NULL, recv_buffer, &d, comm, &info));
    EXPECT(pcclInvalidArgument, pcclAllReduce(send_buffer, NULL, &d, comm, &info));
    wrong = d;
    wrong.op = (pcclRedOp_t)5;
    EXPECT(pcclInvalidArgument, pcclAllReduce(send_buffer, recv_buffer, &wrong, comm, &info));
    wrong = d;
    wrong.src_descriptor.datatype = (pcclDataType_t)12;
    EXPECT(pcclInvalidArgument, pcclAllReduce(send_buffer, recv_buffer, &wrong, comm, &info));
    wrong = d;
    wrong.quantization_options.quantized_datatype = (pcclDataType_t)-1;
    EXPECT(pcclInvalidArgument, pcclAllReduce(send_buffer, recv_buffer, &wrong, comm, &info));
    wrong = d;
    wrong.quantization_options.algorithm = (pcclQuantizationAlgorithm_t)3;
    EXPECT(pcclInvalidArgument, pcclAllReduce(send_buffer, recv_buffer, &wrong, comm, &info));

    ops[0].sendbuf = ops[0].recvbuf = send_buffer;
    ops[0].descriptor = d;
    ops[1] = ops[0];
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(NULL, 1, comm, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 0, comm, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 1, comm, NULL, 0));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 1, comm, NULL, -4));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 2, comm, NULL, 2));
    EXPECT(pcclTooFewPeers, pcclAllReduceMultipleWithRetry(ops, 1, comm, &info, 1));
    REQUIRE(info.local_world_size == 1 && info.tx_bytes == 0);

    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(NULL, NULL));
    handle.comm = comm;
    handle.tag = 5;
    EXPECT(pcclRankConnectionLost, pcclAwaitAsyncReduce(&handle, &info));
    EXPECT(pcclRankConnectionLost, pcclTestAsyncReduce(&handle, &pending));
    OK(pcclDestroyCommunicator(comm));
    stop_master(master);
}

static void states(void) {
    uint16_t port;
    pcclMasterInstance_t *master = start_master(&port);
    pcclComm_t *comm = new_peer(port, 0);
    pcclSharedState_t state;
    pcclTensorInfo_t tensor;
    pcclSharedStateSyncInfo_t info;
    const pcclSharedStateSyncStrategy_t popular = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    OK(pcclConnect(comm));
    memset(&tensor, 0, sizeof tensor);
    state.revision = 4;
    state.count = 1;
    state.infos = &tensor;
    tensor.name = "w";
    tensor.data = send_buffer;
    tensor.count = 16;
    tensor.datatype = pcclFloat;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, NULL, popular, NULL));
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, (pcclSharedStateSyncStrategy_t)3, NULL));
    tensor.device_type = pcclDeviceCuda;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, popular, NULL));
    REQUIRE(strstr(pcclGetLastError(), "\"w\" is in CUDA memory"));
    tensor.device_type = (pcclDeviceType_t)4;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, popular, NULL));
    tensor.device_type = pcclDeviceCpu;
    tensor.datatype = (pcclDataType_t)31;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, popular, NULL));
    tensor.datatype = pcclFloat;
    tensor.data = NULL;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, popular, NULL));
    tensor.data = send_buffer;
    tensor.name = NULL;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, popular, NULL));
    tensor.name = "w";
    state.infos = NULL;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(comm, &state, popular, NULL));
    state.infos = &tensor;
    /* Alone it succeeds, and moves nothing. */
    OK(pcclSynchronizeSharedState(comm, &state, popular, &info));
    REQUIRE(info.tx_bytes == 0 && info.rx_bytes == 0 && state.revision == 4);
    OK(pcclDestroyCommunicator(comm));
    stop_master(master);
}

static void masters(void) {
    pcclMasterInstance_t *master = NULL, *second = NULL;
    pcclMasterConfig_t config = PCCL_MASTER_CONFIG_INIT;
    uint16_t port, unknown;
    EXPECT(pcclInvalidArgument, pcclCreateMaster(loopback(1), NULL));
    EXPECT(pcclInvalidArgument, pcclRunMaster(NULL));
    EXPECT(pcclInvalidArgument, pcclInterruptMaster(NULL));
    EXPECT(pcclInvalidArgument, pcclMasterAwaitTermination(NULL));
    EXPECT(pcclInvalidArgument, pcclDestroyMaster(NULL));
    EXPECT(pcclInvalidArgument, pcclCreateMasterEx(&config, &master));
    EXPECT(pcclInvalidArgument, pcclDestroyMaster((pcclMasterInstance_t *)(void *)send_buffer));

    /* Port zero is refused where peers could not learn the port. */
    OK(pcclCreateMaster(loopback(0), &master));
    EXPECT(pcclInvalidUsage, pcclInterruptMaster(master));
    EXPECT(pcclInvalidUsage, pcclMasterAwaitTermination(master));
    EXPECT(pcclInvalidUsage, pcclGetMasterPort(master, &unknown));
    EXPECT(pcclInvalidUsage, pcclRunMaster(master));
    EXPECT(pcclInvalidUsage, pcclRunMaster(master));
    EXPECT(pcclInvalidUsage, pcclMasterAwaitTermination(master));
    OK(pcclDestroyMaster(master));

    /* Making one on a busy port works; running it does not, and it stays of no use. */
    master = start_master(&port);
    EXPECT(pcclInvalidUsage, pcclRunMaster(master));
    OK(pcclCreateMaster(loopback(port), &second));
    EXPECT(pcclInvalidUsage, pcclRunMaster(second));
    OK(pcclInterruptMaster(master));
    OK(pcclInterruptMaster(master));
    OK(pcclMasterAwaitTermination(master));
    OK(pcclMasterAwaitTermination(master));
    EXPECT(pcclInvalidUsage, pcclRunMaster(second));
    OK(pcclDestroyMaster(second));
    OK(pcclDestroyMaster(master));
    EXPECT(pcclInvalidArgument, pcclDestroyMaster(master));

    /* Its port is free at once, with a peer still connected; a running one is ended by its end. */
    OK(pcclCreateMaster(loopback(port), &second));
    OK(pcclRunMaster(second));
    OK(pcclDestroyMaster(second));
}

/* A child has no threads for what its parent made: it is told so, and its exit disturbs nobody. */
static void forked(void) {
    uint16_t port;
    pcclMasterInstance_t *master = start_master(&port);
    pcclComm_t *comm = new_peer(port, 0);
    pid_t child;
    int status;
    OK(pcclConnect(comm));
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        every_call(pcclInvalidUsage, comm);
        REQUIRE(strstr(pcclGetLastError(), "parent") != NULL);
        EXPECT(pcclInvalidUsage, pcclInterruptMaster(master));
        OK(pcclDestroyCommunicator(comm));
        OK(pcclDestroyMaster(master));
        /* Without the end of the program, in which tools would count the parent's memory as lost. */
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    OK(pcclUpdateTopology(comm));
    OK(pcclDestroyCommunicator(comm));
    stop_master(master);
}

int main(void) {
    REQUIRE(strcmp(pcclGetResultName(pcclPendingAsyncOps), "pcclPendingAsyncOps") == 0);
    REQUIRE(strcmp(pcclGetResultName((pcclResult_t)13), "unknown") == 0);
    REQUIRE(strlen(pcclGetVersion()) >= 5);
    REQUIRE(strcmp(pcclGetLastError(), "") == 0);
    before_init();
    communicators();
    connecting();
    alone();
    states();
    masters();
    forked();
    return 0;
}
