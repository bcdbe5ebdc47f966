/*
 * What PCCL 1.0 had no scenarios for: buffers, limits, cancelling, death of a member or of the master, destruction in
 * odd moments, many with retry. `more NAME` runs one.
 */
#include "harness.h"

#include <stddef.h>
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void run_peers(int world, void (*body)(peer *)) {
    static crowd all;
    memset(&all, 0, sizeof all);
    all.world = world;
    all.body = body;
    run_crowd(&all);
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- Buffers ---- */

static void buffers_body(peer *self) {
    float buffer[64] = {0};
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 32, pcclSum, 1);
    pcclReduceInfo_t info;
    EXPECT(pcclInvalidArgument, pcclAllReduce(buffer, buffer + 16, &d, self->comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(buffer + 31, buffer, &d, self->comm, NULL));
    OK(pcclAllReduce(buffer, buffer + 32, &d, self->comm, NULL));
    OK(pcclAllReduce(buffer, buffer, &d, self->comm, NULL));
    d.count = 0;
    OK(pcclAllReduce(NULL, NULL, &d, self->comm, &info));
    REQUIRE(info.local_world_size == 2 && info.tx_bytes == 0 && info.rx_bytes == 0);
}

/* ---- Requests for quantisation that mean none, or make no sense ---- */

static void formats_body(peer *self) {
    double buffer[16];
    int i;
    pcclReduceDescriptor_t d = descriptor(pcclInt32, 16, pcclSum, 1);
    d.quantization_options.quantized_datatype = pcclUint8;
    d.quantization_options.algorithm = pcclQuantMinMax;
    EXPECT(pcclInvalidArgument, pcclAllReduce(buffer, buffer, &d, self->comm, NULL));
    d = descriptor(pcclDouble, 16, pcclMax, 1);
    d.quantization_options.quantized_datatype = pcclInt8;
    d.quantization_options.algorithm = pcclQuantZeroPointScale;
    EXPECT(pcclInvalidArgument, pcclAllReduce(buffer, buffer, &d, self->comm, NULL));
    d = descriptor(pcclDouble, 16, pcclSum, 1);
    d.quantization_options.quantized_datatype = pcclUint32;
    d.quantization_options.algorithm = pcclQuantMinMax;
    for (i = 0; i < 16; i++) {
        buffer[i] = 0.1;
    }
    OK(pcclAllReduce(buffer, buffer, &d, self->comm, NULL));
    REQUIRE(buffer[15] == 0.2);
    d.quantization_options.quantized_datatype = pcclFloat16;
    EXPECT(pcclInvalidArgument, pcclAllReduce(buffer, buffer, &d, self->comm, NULL));
    /* Members that do not quantise alike do not compute together. */
    d.quantization_options.quantized_datatype = self->index == 0 ? pcclUint8 : pcclInt8;
    EXPECT(pcclInvalidArgument, pcclAllReduce(buffer, buffer, &d, self->comm, NULL));
    REQUIRE(buffer[15] == 0.2);
}

/* ---- Mismatch ---- */

static void mismatch_body(peer *self) {
    float buffer[16] = {1, 2, 3};
    pcclReduceDescriptor_t d = descriptor(pcclFloat, self->index == 0 ? 16 : 15, pcclSum, 1);
    pcclReduceOpDescriptor_t op;
    EXPECT(pcclInvalidArgument, pcclAllReduce(buffer, buffer, &d, self->comm, NULL));
    REQUIRE(buffer[0] == 1 && buffer[1] == 2 && buffer[2] == 3);
    memset(&op, 0, sizeof op);
    op.sendbuf = op.recvbuf = buffer;
    op.descriptor = d;
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(&op, 1, self->comm, NULL, 1));
    REQUIRE(strstr(pcclGetLastError(), "differ") != NULL);
}

/* ---- Limits and cancelling ---- */

static void limits_body(peer *self) {
    float buffer[16] = {5}, recv[16];
    pcclReduceCall_t call;
    pcclAsyncReduceOp_t op;
    bool done = true;
    memset(&call, 0, sizeof call);
    call.struct_size = sizeof call;
    call.send.data = buffer;
    call.recv.data = recv;
    call.descriptor = descriptor(pcclFloat, 16, pcclSum, 1);
    if (self->index == 0) {
        /* The other member has not called: the wait ends, the operation does not. */
        OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
        OK(pcclAwaitAsyncReduceFor(&op, 20, &done, NULL));
        REQUIRE(!done);
        OK(pcclTestAsyncReduce(&op, &done));
        REQUIRE(!done);
        meet(self);
        OK(pcclAwaitAsyncReduce(&op, NULL));
    } else {
        meet(self);
        OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
        OK(pcclAwaitAsyncReduceFor(&op, 60000, &done, NULL));
        REQUIRE(done);
    }
    REQUIRE(recv[0] == 10);
    meet(self);
    /* A limit of the operation ends it for both: whoever comes later finds it ended. */
    call.time_limit_ms = 50;
    call.descriptor.tag = 2;
    if (self->index == 0) {
        OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
        EXPECT(pcclRankConnectionLost, pcclAwaitAsyncReduce(&op, NULL));
        REQUIRE(strstr(pcclGetLastError(), "limit") != NULL);
        meet(self);
    } else {
        meet(self);
        OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
        EXPECT(pcclRankConnectionLost, pcclAwaitAsyncReduce(&op, NULL));
    }
    meet(self);
    call.time_limit_ms = 0;
    call.descriptor.tag = 3;
    if (self->index == 0) {
        OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
        OK(pcclCancelAsyncReduce(&op));
        EXPECT(pcclRankConnectionLost, pcclAwaitAsyncReduce(&op, NULL));
        meet(self);
    } else {
        meet(self);
        EXPECT(pcclRankConnectionLost, pcclAllReduce(buffer, recv, &call.descriptor, self->comm, NULL));
    }
    /* Nothing is left over. */
    OK(pcclUpdateTopology(self->comm));
    call.send.device_type = pcclDeviceCuda;
    EXPECT(pcclInvalidArgument, pcclAllReduceAsyncEx(&call, self->comm, &op));
    call.send.device_type = pcclDeviceCpu;
    call.recv.stream = buffer;
    EXPECT(pcclInvalidArgument, pcclAllReduceAsyncEx(&call, self->comm, &op));
}

/* ---- Algorithms ---- */

static void algorithms_body(peer *self) {
    enum { COUNT = 30000 };
    static float buffers[3][COUNT];
    float *buffer = buffers[self->index];
    pcclReduceCall_t call;
    pcclAsyncReduceOp_t op;
    pcclReduceInfo_t info;
    int i;
    memset(&call, 0, sizeof call);
    call.struct_size = sizeof call;
    call.send.data = call.recv.data = buffer;
    call.descriptor = descriptor(pcclFloat, COUNT, pcclSum, 1);
    for (call.algorithm = pcclAlgorithmAutomatic; call.algorithm <= pcclAlgorithmDirect; call.algorithm++) {
        for (i = 0; i < COUNT; i++) {
            buffer[i] = (float)(i + self->index);
        }
        OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
        OK(pcclAwaitAsyncReduce(&op, &info));
        for (i = 0; i < COUNT; i++) {
            REQUIRE(buffer[i] == (float)(3 * i + 3));
        }
        if (call.algorithm == pcclAlgorithmRing || call.algorithm == pcclAlgorithmDirect) {
            REQUIRE(info.tx_bytes == sizeof buffers[0] / 3 * 4 && info.rx_bytes == sizeof buffers[0] / 3 * 4);
        }
        if (call.algorithm == pcclAlgorithmStar) {
            REQUIRE(info.tx_bytes % sizeof buffers[0] == 0 && info.tx_bytes == info.rx_bytes);
        }
    }
    EXPECT(pcclInvalidArgument, pcclAllReduceAsyncEx(&call, self->comm, &op));
    call.algorithm = self->index == 0 ? pcclAlgorithmStar : pcclAlgorithmRing;
    OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(&op, NULL));
    REQUIRE(strstr(pcclGetLastError(), "by star") != NULL && strstr(pcclGetLastError(), "by ring") != NULL);
    /* A program that knows nothing of algorithms goes on as it did. */
    call.struct_size = offsetof(pcclReduceCall_t, algorithm);
    call.descriptor = descriptor(pcclFloat, 1, pcclMax, 2);
    OK(pcclAllReduceAsyncEx(&call, self->comm, &op));
    OK(pcclAwaitAsyncReduce(&op, &info));
    REQUIRE(info.local_world_size == 3);
}

/* ---- Many with retry ---- */

static void many_body(peer *self) {
    enum { OPS = 50, COUNT = 1000 };
    static float buffers[2][OPS][COUNT];
    pcclReduceOpDescriptor_t ops[OPS];
    pcclReduceInfo_t info;
    int i, k;
    memset(ops, 0, sizeof ops);
    for (i = 0; i < OPS; i++) {
        for (k = 0; k < COUNT; k++) {
            buffers[self->index][i][k] = (float)(i + k + self->index * 2);
        }
        ops[i].sendbuf = ops[i].recvbuf = buffers[self->index][i];
        ops[i].descriptor = descriptor(pcclFloat, COUNT, pcclAvg, (uint64_t)i);
    }
    OK(pcclAllReduceMultipleWithRetry(ops, OPS, self->comm, &info, self->index == 0 ? 7 : 1000000));
    REQUIRE(info.local_world_size == 2);
    REQUIRE(info.tx_bytes == sizeof buffers[0] && info.rx_bytes == sizeof buffers[0]);
    for (i = 0; i < OPS; i++) {
        for (k = 0; k < COUNT; k++) {
            REQUIRE(buffers[self->index][i][k] == (float)(i + k + 1));
        }
    }
    ops[1].recvbuf = buffers[self->index][0] + 1;
    ops[1].sendbuf = ops[1].recvbuf;
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, OPS, self->comm, &info, 4));
    OK(pcclUpdateTopology(self->comm));
}

/* ---- Collectives on one thread, the query for newcomers on another: what delayed outer steps are made of ---- */

static void *reduce_in_the_background(void *argument) {
    enum { OPS = 8, COUNT = 4096, ROUNDS = 10 };
    peer *self = (peer *)argument;
    static float buffers[2][OPS][COUNT];
    pcclReduceOpDescriptor_t ops[OPS];
    int i, round;
    memset(ops, 0, sizeof ops);
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < OPS; i++) {
            buffers[self->index][i][COUNT - 1] = (float)(round + self->index);
            ops[i].sendbuf = ops[i].recvbuf = buffers[self->index][i];
            ops[i].descriptor = descriptor(pcclFloat, COUNT, pcclSum, (uint64_t)i);
        }
        OK(pcclAllReduceMultipleWithRetry(ops, OPS, self->comm, NULL, 3));
        for (i = 0; i < OPS; i++) {
            REQUIRE(buffers[self->index][i][COUNT - 1] == (float)(2 * round + 1));
        }
    }
    return NULL;
}

static void background_body(peer *self) {
    pthread_t thread;
    int i;
    REQUIRE(pthread_create(&thread, NULL, reduce_in_the_background, self) == 0);
    for (i = 0; i < 50; i++) {
        bool pending = true;
        OK(pcclArePeersPending(self->comm, &pending));
        REQUIRE(!pending);
    }
    pthread_join(thread, NULL);
    OK(pcclUpdateTopology(self->comm));
}

/* ---- State ---- */

static void state_body(peer *self) {
    /* The second name of the same memory is what tied weights are. */
    float weights[256];
    double own[2] = {1, 2};
    pcclTensorInfo_t tensors[3];
    pcclSharedState_t state;
    pcclSharedStateSyncInfo_t info;
    pcclDivergence_t divergences[2];
    pcclSyncSource_t sources[2];
    pcclSyncProgress_t progress;
    size_t count;
    size_t source_count;
    int i;
    memset(tensors, 0, sizeof tensors);
    for (i = 0; i < 256; i++) {
        weights[i] = (float)(self->index < 2 ? i : -i);
    }
    tensors[0].name = "weights";
    tensors[1].name = "tied";
    tensors[0].data = tensors[1].data = weights;
    tensors[0].count = tensors[1].count = 256;
    tensors[0].datatype = tensors[1].datatype = pcclFloat;
    tensors[2].name = "own";
    tensors[2].data = own;
    tensors[2].count = 2;
    tensors[2].datatype = pcclDouble;
    tensors[2].allow_content_inequality = true;
    own[0] = self->index;
    state.revision = 9;
    state.count = 3;
    state.infos = tensors;
    OK(pcclSynchronizeSharedState(self->comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info));
    REQUIRE(state.revision == 9);
    REQUIRE(info.rx_bytes == (self->index == 2 ? 2 * sizeof weights : 0));
    REQUIRE(own[0] == self->index);
    for (i = 0; i < 256; i++) {
        REQUIRE(weights[i] == (float)i);
    }
    state.revision = 10;
    OK(pcclSynchronizeSharedState(self->comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info));
    REQUIRE(info.rx_bytes == 0 && info.tx_bytes == 0);
    /* What should have been the same and was not is named. */
    state.revision = 11;
    if (self->index == 2) {
        weights[7] = -7;
    }
    OK(pcclSynchronizeSharedState(self->comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info));
    OK(pcclGetDivergences(self->comm, divergences, 2, &count));
    OK(pcclGetSyncSources(self->comm, sources, 2, &source_count));
    OK(pcclGetSyncProgress(self->comm, &progress));
    REQUIRE(progress.total_bytes == 0);
    if (self->index == 2) {
        uint64_t given = sources[0].bytes + (source_count == 2 ? sources[1].bytes : 0);
        REQUIRE(count == 2 && strcmp(divergences[0].tensor, "tied") == 0);
        REQUIRE(strcmp(divergences[1].tensor, "weights") == 0);
        REQUIRE(divergences[1].begin >= 28 && divergences[1].end <= 32 && divergences[1].end > divergences[1].begin);
        REQUIRE(divergences[1].has_since && divergences[1].since == 10 && divergences[1].holders == 2);
        REQUIRE(source_count > 0 && given == info.rx_bytes && weights[7] == 7);
    } else {
        REQUIRE(count == 0 && source_count == 0);
    }
    meet(self);
    /* Who breaks a rule fails, learns why, is alone, and can come back. */
    state.revision = 12;
    if (self->index == 2) {
        tensors[2].name = "another";
        EXPECT(pcclInvalidUsage, pcclSynchronizeSharedState(self->comm, &state,
                                                            PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info));
        REQUIRE(strstr(pcclGetLastError(), "another") != NULL || strstr(pcclGetLastError(), "own") != NULL);
        REQUIRE(attribute(self->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 1);
        OK(pcclUpdateTopology(self->comm));
    } else {
        OK(pcclSynchronizeSharedState(self->comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info));
        REQUIRE(attribute(self->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 2);
        while (attribute(self->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) < 3) {
            OK(pcclUpdateTopology(self->comm));
        }
    }
    REQUIRE(attribute(self->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 3);
}

/* ---- A member is killed ---- */

static volatile sig_atomic_t usr1_seen;
static void on_usr1(int signal) { usr1_seen = signal; }

/* One member is another process, and dies in the middle of an operation: the rest fails soon and keeps its buffer. */
static void killed(void) {
    enum { COUNT = 1 << 20 };
    static float buffer[COUNT];
    uint16_t port;
    int to_child[2], i;
    pid_t child;
    pcclMasterInstance_t *master;
    pcclComm_t *comm;
    pcclReduceDescriptor_t d = descriptor(pcclFloat, COUNT, pcclSum, 1);
    pcclReduceInfo_t info;
    pcclReduceOpDescriptor_t op;
    double begin;
    REQUIRE(pipe(to_child) == 0);
    child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        REQUIRE(read(to_child[0], &port, sizeof port) == sizeof port);
        comm = new_peer(port, 0);
        join_world(comm, 2);
        OK(pcclAllReduce(buffer, buffer, &d, comm, NULL));
        /* Waits for its end without ever calling the second one. */
        for (;;) {
            pause();
        }
    }
    OK(pcclInit());
    master = start_master(&port);
    REQUIRE(write(to_child[1], &port, sizeof port) == sizeof port);
    comm = new_peer(port, 0);
    join_world(comm, 2);
    OK(pcclAllReduce(buffer, buffer, &d, comm, NULL));
    for (i = 0; i < COUNT; i++) {
        buffer[i] = (float)i;
    }
    {
        pcclAsyncReduceOp_t handle;
        bool done = true;
        OK(pcclAllReduceAsync(buffer, buffer, &d, comm, &handle));
        OK(pcclAwaitAsyncReduceFor(&handle, 20, &done, NULL));
        REQUIRE(!done);
        begin = seconds_now();
        REQUIRE(kill(child, SIGKILL) == 0);
        EXPECT(pcclRankConnectionLost, pcclAwaitAsyncReduce(&handle, &info));
        REQUIRE(seconds_now() - begin < 3);
    }
    REQUIRE(waitpid(child, NULL, 0) == child);
    for (i = 0; i < COUNT; i++) {
        REQUIRE(buffer[i] == (float)i);
    }
    REQUIRE(attribute(comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) == 1);
    memset(&op, 0, sizeof op);
    op.sendbuf = op.recvbuf = buffer;
    op.descriptor = d;
    EXPECT(pcclTooFewPeers, pcclAllReduceMultipleWithRetry(&op, 1, comm, &info, 1));
    REQUIRE(info.local_world_size == 1);
    OK(pcclUpdateTopology(comm));
    OK(pcclDestroyCommunicator(comm));
    stop_master(master);
}

/* ---- Odd ends ---- */

static void *retry_until_the_end(void *argument) {
    peer *self = (peer *)argument;
    static float buffer[16];
    pcclReduceOpDescriptor_t op;
    memset(&op, 0, sizeof op);
    op.sendbuf = op.recvbuf = buffer;
    op.descriptor = descriptor(pcclFloat, 16, pcclSum, 9);
    /* The other member never calls it; the communicator goes away under this call. */
    REQUIRE(pcclAllReduceMultipleWithRetry(&op, 1, self->comm, NULL, 1) != pcclSuccess);
    return NULL;
}

static void odd_ends_body(peer *self) {
    float buffer[16] = {3};
    pcclReduceDescriptor_t mine = descriptor(pcclFloat, 16, pcclSum, 1);
    pcclReduceDescriptor_t theirs = descriptor(pcclFloat, 16, pcclSum, 2);
    pcclAsyncReduceOp_t op;
    if (self->index == 0) {
        /* Destroyed with an operation open and a thread in a call: both end, and the memory is free. */
        pthread_t thread;
        OK(pcclAllReduceAsync(buffer, buffer, &mine, self->comm, &op));
        REQUIRE(pthread_create(&thread, NULL, retry_until_the_end, self) == 0);
        /* Most likely the thread is in its call by then; if not, its communicator is gone when it calls. */
        meet(self);
        sched_yield();
        OK(pcclDestroyCommunicator(self->comm));
        pthread_join(thread, NULL);
        REQUIRE(buffer[0] == 3);
        EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(&op, NULL));
        self->comm = new_peer(self->all->port, 0);
    } else {
        meet(self);
        EXPECT(pcclRankConnectionLost, pcclAllReduce(buffer, buffer, &theirs, self->comm, NULL));
        REQUIRE(buffer[0] == 3);
        REQUIRE(attribute(self->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 1);
    }
}

static void *connect_for_ever(void *argument) {
    pcclResult_t result = pcclConnect((pcclComm_t *)argument);
    REQUIRE(result == pcclMasterConnectionFailed);
    return NULL;
}

/* A newcomer that nobody admits is destroyed while it waits in connect. */
static void destroyed_while_joining(void) {
    uint16_t port;
    pcclMasterInstance_t *master = start_master(&port);
    pcclComm_t *member = new_peer(port, 0);
    pcclComm_t *newcomer = new_peer(port, 0);
    pthread_t thread;
    bool pending = false;
    OK(pcclConnect(member));
    REQUIRE(pthread_create(&thread, NULL, connect_for_ever, newcomer) == 0);
    while (!pending) {
        OK(pcclArePeersPending(member, &pending));
    }
    OK(pcclDestroyCommunicator(newcomer));
    pthread_join(thread, NULL);
    OK(pcclUpdateTopology(member));
    REQUIRE(attribute(member, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 1);
    OK(pcclDestroyMaster(master));
    OK(pcclDestroyCommunicator(member));
}

/* ---- Signals and threads ---- */

static long blocked_signals(const char *task) {
    char path[300], line[256];
    long blocked = -1;
    FILE *status;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    status = fopen(path, "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "SigBlk:", 7) == 0) {
            blocked = (long)(strtoull(line + 7, NULL, 16) & 0x7fffffff);
        }
    }
    if (status != NULL) {
        fclose(status);
    }
    return blocked;
}

/* Counts threads; checks that all but those in `own` block the ordinary signals (numbers 1 to 31, less KILL and STOP). */
static int other_threads(const char *own) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int count = 0;
    if (tasks == NULL) {
        /* Only Linux shows threads here. */
        return -1;
    }
    while ((task = readdir(tasks)) != NULL) {
        if (task->d_name[0] != '.' && strcmp(task->d_name, own) != 0) {
            long blocked = blocked_signals(task->d_name);
            REQUIRE(blocked == -1 || (blocked | 0x40100) == 0x7fffffff);
            count++;
        }
    }
    closedir(tasks);
    return count;
}

static void signals(void) {
    char own[32];
    uint16_t port;
    pcclMasterInstance_t *master;
    pcclComm_t *comm;
    sigset_t mask;
    struct sigaction before, after;
    snprintf(own, sizeof own, "%ld", (long)getpid());
    REQUIRE(other_threads(own) <= 0);
    signal(SIGUSR1, on_usr1);
    sigaction(SIGPIPE, NULL, &before);
    master = start_master(&port);
    comm = new_peer(port, 0);
    OK(pcclConnect(comm));
    REQUIRE(other_threads(own) != 0);
    sigaction(SIGPIPE, NULL, &after);
    REQUIRE(before.sa_handler == SIG_DFL && after.sa_handler == SIG_DFL);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    REQUIRE(!sigismember(&mask, SIGUSR1));
    kill(getpid(), SIGUSR1);
    REQUIRE(usr1_seen == SIGUSR1);
    OK(pcclDestroyCommunicator(comm));
    stop_master(master);
    REQUIRE(other_threads(own) <= 0);
}

/* ---- Limits of the system ---- */

/* With few descriptors things fail, in words and with codes, and nothing is left behind that keeps later ones from working. */
static void descriptors(void) {
    struct rlimit before, few;
    rlim_t most;
    int worked = 0;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    for (most = 3; most <= 40; most++) {
        pcclMasterConfig_t config = PCCL_MASTER_CONFIG_INIT;
        pcclMasterInstance_t *master = NULL;
        pcclComm_t *comm = NULL;
        pcclCommCreateParams_t params;
        pcclResult_t result;
        uint16_t port = 1;
        memset(&params, 0, sizeof params);
        few.rlim_cur = most;
        REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
        config.listen = "127.0.0.1:0";
        OK(pcclCreateMasterEx(&config, &master));
        result = pcclRunMaster(master);
        REQUIRE(result == pcclSuccess || result == pcclInvalidUsage || result == pcclInternalError);
        if (result == pcclSuccess) {
            OK(pcclGetMasterPort(master, &port));
        }
        params.master_address = loopback(port);
        result = pcclCreateCommunicator(&params, &comm);
        REQUIRE(result == pcclSuccess || result == pcclInternalError);
        if (result == pcclSuccess) {
            OK(pcclSetTimeLimit(comm, 200));
            result = pcclConnect(comm);
            REQUIRE(result == pcclSuccess || result == pcclMasterConnectionFailed || result == pcclInternalError);
            REQUIRE(result == pcclSuccess || strlen(pcclGetLastError()) > 20);
            if (result == pcclSuccess) {
                worked++;
                OK(pcclUpdateTopology(comm));
            }
            OK(pcclDestroyCommunicator(comm));
        }
        OK(pcclDestroyMaster(master));
    }
    REQUIRE(worked > 0);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int world;
        void (*body)(peer *);
        void (*alone)(void);
    } tests[] = {
        {"buffers", 2, buffers_body, NULL},
        {"formats", 2, formats_body, NULL},
        {"mismatch", 2, mismatch_body, NULL},
        {"limits", 2, limits_body, NULL},
        {"algorithms", 3, algorithms_body, NULL},
        {"many", 2, many_body, NULL},
        {"background", 2, background_body, NULL},
        {"state", 3, state_body, NULL},
        {"odd_ends", 2, odd_ends_body, NULL},
        {"killed", 0, NULL, killed},
        {"destroyed_while_joining", 0, NULL, destroyed_while_joining},
        {"signals", 0, NULL, signals},
        {"descriptors", 0, NULL, descriptors},
    };
    size_t i;
    OK(pcclInit());
    for (i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
            if (tests[i].alone != NULL) {
                tests[i].alone();
            } else {
                run_peers(tests[i].world, tests[i].body);
            }
            return 0;
        }
    }
    fprintf(stderr, "no such test\n");
    return 2;
}
