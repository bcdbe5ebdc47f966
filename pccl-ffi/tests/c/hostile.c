/* What no program means to do: absurd counts, odd pointers, too many handles, the end in the middle of everything. */
#include "harness.h"

#include <unistd.h>

enum { MOST = 1024 };

static char odd_bytes[256];

/* Counts that no memory holds, and pointers that no value can be at. */
static void absurd(peer *self) {
    pcclReduceDescriptor_t d = descriptor(pcclDouble, 4, pcclSum, UINT64_MAX);
    pcclReduceOpDescriptor_t op;
    pcclTensorInfo_t tensor;
    pcclSharedState_t state;
    pcclAsyncReduceOp_t handle;
    pcclReduceInfo_t info;
    pcclReduceCall_t call;
    double in[4] = {1, 2, 3, 4}, out[4];
    size_t counts[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8, SIZE_MAX / 8 + 1, (size_t)1 << 60};
    size_t i;
    void *odd = odd_bytes + 1;
    const pcclSharedStateSyncStrategy_t popular = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    memset(&op, 0, sizeof op);
    memset(&tensor, 0, sizeof tensor);
    memset(&call, 0, sizeof call);
    op.sendbuf = in;
    op.recvbuf = out;
    tensor.name = "w";
    tensor.data = in;
    tensor.datatype = pcclDouble;
    state.revision = 1;
    state.count = 1;
    state.infos = &tensor;
    for (i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        d.count = tensor.count = counts[i];
        op.descriptor = d;
        EXPECT(pcclInvalidArgument, pcclAllReduce(in, out, &d, self->comm, NULL));
        EXPECT(pcclInvalidArgument, pcclAllReduceAsync(in, in, &d, self->comm, &handle));
        EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(&op, 1, self->comm, NULL, 1));
        EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(self->comm, &state, popular, NULL));
    }
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(&op, SIZE_MAX, self->comm, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(&op, SIZE_MAX / sizeof op, self->comm, NULL, 1));
    /* As many as an address space could hold and no system gives. */
    EXPECT(pcclInternalError, pcclAllReduceMultipleWithRetry(&op, (size_t)1 << 40, self->comm, NULL, 1));
    tensor.count = 4;
    state.count = SIZE_MAX;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(self->comm, &state, popular, NULL));
    state.count = (size_t)1 << 40;
    EXPECT(pcclInternalError, pcclSynchronizeSharedState(self->comm, &state, popular, NULL));
    /* The structures are not where such values can be. */
    d.count = 4;
    EXPECT(pcclInvalidArgument, pcclAllReduce(in, out, (pcclReduceDescriptor_t *)odd, self->comm, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(in, out, &d, self->comm, (pcclReduceInfo_t *)odd));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(in, out, &d, self->comm, (pcclAsyncReduceOp_t *)odd));
    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce((pcclAsyncReduceOp_t *)odd, NULL));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(self->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, (int *)odd));
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(self->comm, (pcclSharedState_t *)odd, popular, NULL));
    EXPECT(pcclInvalidArgument, pcclGetMemberId(self->comm, (uint64_t *)odd));
    EXPECT(pcclInvalidArgument, pcclGetMembers(self->comm, NULL, SIZE_MAX, &i));
    for (i = 0; i < 4; i++) {
        call.struct_size = i == 0 ? 0 : i == 1 ? offsetof(pcclReduceCall_t, algorithm) - 1 : i == 2 ? SIZE_MAX : (size_t)1 << 30;
        EXPECT(pcclInvalidArgument, pcclAllReduceAsyncEx(&call, self->comm, &handle));
    }
    call.struct_size = sizeof call;
    call.descriptor = d;
    call.send.data = in;
    call.recv.data = out;
    call.send.device_type = pcclDeviceCuda;
    EXPECT(pcclInvalidArgument, pcclAllReduceAsyncEx(&call, self->comm, &handle));
    call.send.device_type = (pcclDeviceType_t)-5;
    EXPECT(pcclInvalidArgument, pcclAllReduceAsyncEx(&call, self->comm, &handle));
    call.send.device_type = pcclDeviceCpu;
    call.recv.stream = odd;
    EXPECT(pcclInvalidArgument, pcclAllReduceAsyncEx(&call, self->comm, &handle));
    call.recv.stream = NULL;
    call.time_limit_ms = UINT64_MAX;
    /* Nothing of this was told to anybody; data need not be aligned, and tags may be any number. */
    OK(pcclAllReduceAsyncEx(&call, self->comm, &handle));
    OK(pcclAwaitAsyncReduceFor(&handle, UINT64_MAX, (bool *)odd_bytes, &info));
    REQUIRE(odd_bytes[0] == 1 && out[3] == 8);
    memcpy(odd, in, sizeof in);
    d.tag = 0;
    OK(pcclAllReduce(odd, (char *)odd + sizeof in, &d, self->comm, &info));
    OK(pcclAllReduce(odd, odd, &d, self->comm, &info));
    memcpy(out, odd, sizeof out);
    REQUIRE(out[3] == 8);
}

/* One handle more than there may be. */
static void many_handles(peer *self) {
    static float buffers[2][MOST + 1];
    pcclAsyncReduceOp_t handles[MOST + 1];
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 1, pcclSum, 0);
    int i;
    for (i = 0; i < MOST; i++) {
        d.tag = UINT64_MAX - (uint64_t)i;
        buffers[self->index][i] = (float)i;
        OK(pcclAllReduceAsync(&buffers[self->index][i], &buffers[self->index][i], &d, self->comm, &handles[i]));
    }
    d.tag = 5;
    EXPECT(pcclInvalidUsage, pcclAllReduceAsync(&buffers[self->index][MOST], &buffers[self->index][MOST], &d, self->comm,
                                                &handles[MOST]));
    EXPECT(pcclPendingAsyncOps, pcclUpdateTopology(self->comm));
    for (i = 0; i < MOST; i++) {
        OK(pcclAwaitAsyncReduce(&handles[i], NULL));
        REQUIRE(buffers[self->index][i] == (float)(2 * i));
    }
    OK(pcclUpdateTopology(self->comm));
}

static void *use_for_ever(void *argument) {
    pcclComm_t *comm = (pcclComm_t *)argument;
    float buffer[64] = {1};
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 64, pcclSum, 1);
    uint64_t i;
    for (i = 0; i < 1000000; i++) {
        pcclAsyncReduceOp_t handle;
        bool flag;
        int value;
        size_t count;
        d.tag = (uint64_t)(uintptr_t)buffer + i % 3;
        if (pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &value) == pcclInvalidArgument) {
            return NULL;
        }
        (void)pcclGetMembers(comm, NULL, 0, &count);
        if (pcclAllReduceAsync(buffer, buffer, &d, comm, &handle) == pcclSuccess) {
            (void)pcclTestAsyncReduce(&handle, &flag);
            (void)pcclCancelAsyncReduce(&handle);
            (void)pcclAwaitAsyncReduce(&handle, NULL);
        }
    }
    REQUIRE(false);
    return NULL;
}

static void *destroy(void *argument) {
    pcclResult_t *result = (pcclResult_t *)argument;
    pcclComm_t *comm;
    memcpy(&comm, (char *)argument + sizeof(pcclComm_t *), sizeof comm);
    *result = pcclDestroyCommunicator(comm);
    return NULL;
}

/* Used by three threads while two others destroy it: one of these does, and everybody comes out. */
static void destroyed_in_use(peer *self) {
    union {
        pcclResult_t result;
        pcclComm_t *comms[2];
    } ends[2];
    pthread_t users[3], enders[2];
    int i;
    if (self->index == 0) {
        for (i = 0; i < 3; i++) {
            REQUIRE(pthread_create(&users[i], NULL, use_for_ever, self->comm) == 0);
        }
        usleep(20000);
        for (i = 0; i < 2; i++) {
            ends[i].comms[1] = self->comm;
            REQUIRE(pthread_create(&enders[i], NULL, destroy, &ends[i]) == 0);
        }
        for (i = 0; i < 2; i++) {
            pthread_join(enders[i], NULL);
        }
        for (i = 0; i < 3; i++) {
            pthread_join(users[i], NULL);
        }
        REQUIRE((ends[0].result == pcclSuccess) != (ends[1].result == pcclSuccess));
        REQUIRE(ends[0].result + ends[1].result == pcclInvalidArgument);
        self->comm = new_peer(self->all->port, 0);
    }
}

static void *run_or_end(void *argument) {
    pcclMasterInstance_t *master = (pcclMasterInstance_t *)argument;
    (void)pcclRunMaster(master);
    (void)pcclInterruptMaster(master);
    (void)pcclMasterAwaitTermination(master);
    (void)pcclDestroyMaster(master);
    return NULL;
}

/* A master that four threads run, interrupt, await and destroy. */
static void masters_in_use(void) {
    pcclMasterConfig_t config = PCCL_MASTER_CONFIG_INIT;
    pcclMasterInstance_t *master;
    pthread_t threads[4];
    int round, i;
    config.listen = "127.0.0.1:0";
    for (round = 0; round < 20; round++) {
        OK(pcclCreateMasterEx(&config, &master));
        for (i = 0; i < 4; i++) {
            REQUIRE(pthread_create(&threads[i], NULL, run_or_end, master) == 0);
        }
        for (i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
        }
        EXPECT(pcclInvalidArgument, pcclDestroyMaster(master));
    }
}

static void run_pair(void (*body)(peer *)) {
    static crowd all;
    memset(&all, 0, sizeof all);
    all.world = 2;
    all.body = body;
    run_crowd(&all);
}

int main(void) {
    alarm(55);
    OK(pcclInit());
    run_pair(absurd);
    run_pair(many_handles);
    run_pair(destroyed_in_use);
    masters_in_use();
    return 0;
}
