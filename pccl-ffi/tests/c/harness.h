/* What the C tests share: checks that say where, a master on a free port, and peers that have found each other. */
#ifndef HARNESS_H
#define HARNESS_H

#include <pccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #condition,                 \
                    pcclGetLastError());                                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Checks that a call gives a result. */
#define EXPECT(result, call) expect_at(__FILE__, __LINE__, #call, (result), (call))
#define OK(call) EXPECT(pcclSuccess, call)

static inline void expect_at(const char *file, int line, const char *call, pcclResult_t wanted, pcclResult_t got) {
    if (got != wanted) {
        fprintf(stderr, "%s:%d: %s gave %s, not %s (%s)\n", file, line, call, pcclGetResultName(got),
                pcclGetResultName(wanted), pcclGetLastError());
        exit(1);
    }
}

/* A master that finds losses fast, listening on any port. */
static inline pcclMasterInstance_t *start_master(uint16_t *port) {
    pcclMasterConfig_t config = PCCL_MASTER_CONFIG_INIT;
    pcclMasterInstance_t *master = NULL;
    config.listen = "127.0.0.1:0";
    OK(pcclCreateMasterEx(&config, &master));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterPort(master, port));
    return master;
}

static inline void stop_master(pcclMasterInstance_t *master) {
    OK(pcclInterruptMaster(master));
    OK(pcclMasterAwaitTermination(master));
    OK(pcclDestroyMaster(master));
}

static inline ccoip_socket_address_t loopback(uint16_t port) {
    ccoip_socket_address_t address;
    memset(&address, 0, sizeof address);
    address.inet.protocol = inetIPv4;
    address.inet.ipv4.data[0] = 127;
    address.inet.ipv4.data[3] = 1;
    address.port = port;
    return address;
}

static inline pcclComm_t *new_peer(uint16_t port, uint32_t group) {
    pcclCommCreateParams_t params;
    pcclComm_t *comm = NULL;
    memset(&params, 0, sizeof params);
    params.master_address = loopback(port);
    params.peer_group = group;
    params.p2p_connection_pool_size = 1;
    OK(pcclCreateCommunicator(&params, &comm));
    REQUIRE(comm != NULL);
    return comm;
}

static inline int attribute(const pcclComm_t *comm, pcclAttribute_t which) {
    int value = -1;
    OK(pcclGetAttribute(comm, which, &value));
    return value;
}

/* Connects, then admits others until the run has `world` members. */
static inline void join_world(pcclComm_t *comm, int world) {
    OK(pcclConnect(comm));
    while (attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) < world) {
        OK(pcclUpdateTopology(comm));
        REQUIRE(attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) <= world);
    }
}

enum { MOST_PEERS = 8 };

typedef struct crowd crowd;
typedef struct peer peer;

/* One member of the crowd; `index` is the place in which it was started, not its rank. */
struct peer {
    crowd *all;
    int index;
    pcclComm_t *comm;
    pthread_t thread;
    pcclReduceInfo_t info;
};

struct crowd {
    int world;
    uint16_t port;
    void (*body)(peer *);
    void *context;
    /* Group of each peer. */
    uint32_t groups[MOST_PEERS];
    peer peers[MOST_PEERS];
    /* Where they meet: not every system has barriers. */
    pthread_mutex_t lock;
    pthread_cond_t all_there;
    int there;
    int meetings;
};

/* All peers wait here for one another. */
static inline void meet(peer *self) {
    crowd *all = self->all;
    int meeting;
    pthread_mutex_lock(&all->lock);
    meeting = all->meetings;
    if (++all->there == all->world) {
        all->there = 0;
        all->meetings++;
        pthread_cond_broadcast(&all->all_there);
    }
    while (all->meetings == meeting) {
        pthread_cond_wait(&all->all_there, &all->lock);
    }
    pthread_mutex_unlock(&all->lock);
}

static inline void *peer_thread(void *argument) {
    peer *self = (peer *)argument;
    self->comm = new_peer(self->all->port, self->all->groups[self->index]);
    join_world(self->comm, self->all->world);
    self->all->body(self);
    meet(self);
    OK(pcclDestroyCommunicator(self->comm));
    return NULL;
}

/* Runs `body` in `all->world` threads, each with a communicator of its own; all are members when it begins. */
static inline void run_crowd(crowd *all) {
    pcclMasterInstance_t *master = start_master(&all->port);
    int i;
    REQUIRE(all->world <= MOST_PEERS);
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->all_there, NULL);
    for (i = 0; i < all->world; i++) {
        all->peers[i].all = all;
        all->peers[i].index = i;
        REQUIRE(pthread_create(&all->peers[i].thread, NULL, peer_thread, &all->peers[i]) == 0);
    }
    for (i = 0; i < all->world; i++) {
        pthread_join(all->peers[i].thread, NULL);
    }
    pthread_cond_destroy(&all->all_there);
    pthread_mutex_destroy(&all->lock);
    stop_master(master);
}

static inline pcclReduceDescriptor_t descriptor(pcclDataType_t type, size_t count, pcclRedOp_t op, uint64_t tag) {
    pcclReduceDescriptor_t d;
    memset(&d, 0, sizeof d);
    d.count = count;
    d.op = op;
    d.tag = tag;
    d.src_descriptor.datatype = type;
    d.quantization_options.quantized_datatype = type;
    d.quantization_options.algorithm = pcclQuantNone;
    return d;
}

#endif /* HARNESS_H */
