/*
 * The scenarios of PCCL 1.0 for collectives, joining and groups, by their numbers, over the C interface: communicators
 * in threads, a real master. `scenarios N` runs number N and exits with zero if it went as it must.
 */
#include "harness.h"

/* ---- Elements ---- */

typedef struct typed {
    pcclDataType_t type;
    size_t size;
    bool is_float;
} typed;

static const typed TYPES[] = {
    {pcclUint8, 1, false}, {pcclInt8, 1, false},   {pcclUint16, 2, false}, {pcclInt16, 2, false}, {pcclUint32, 4, false},
    {pcclInt32, 4, false}, {pcclUint64, 8, false}, {pcclInt64, 8, false},  {pcclFloat, 4, true},  {pcclDouble, 8, true},
};
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0] };
static const typed FLOAT = {pcclFloat, 4, true};

static bool is_signed(pcclDataType_t type) {
    return type == pcclInt8 || type == pcclInt16 || type == pcclInt32 || type == pcclInt64 || type == pcclFloat ||
           type == pcclDouble;
}

static void put(void *buffer, pcclDataType_t type, size_t i, double value) {
    switch (type) {
    case pcclUint8: ((uint8_t *)buffer)[i] = (uint8_t)value; break;
    case pcclInt8: ((int8_t *)buffer)[i] = (int8_t)value; break;
    case pcclUint16: ((uint16_t *)buffer)[i] = (uint16_t)value; break;
    case pcclInt16: ((int16_t *)buffer)[i] = (int16_t)value; break;
    case pcclUint32: ((uint32_t *)buffer)[i] = (uint32_t)value; break;
    case pcclInt32: ((int32_t *)buffer)[i] = (int32_t)value; break;
    case pcclUint64: ((uint64_t *)buffer)[i] = (uint64_t)value; break;
    case pcclInt64: ((int64_t *)buffer)[i] = (int64_t)value; break;
    case pcclFloat: ((float *)buffer)[i] = (float)value; break;
    case pcclDouble: ((double *)buffer)[i] = value; break;
    default: REQUIRE(false);
    }
}

static double get(const void *buffer, pcclDataType_t type, size_t i) {
    switch (type) {
    case pcclUint8: return ((const uint8_t *)buffer)[i];
    case pcclInt8: return ((const int8_t *)buffer)[i];
    case pcclUint16: return ((const uint16_t *)buffer)[i];
    case pcclInt16: return ((const int16_t *)buffer)[i];
    case pcclUint32: return ((const uint32_t *)buffer)[i];
    case pcclInt32: return ((const int32_t *)buffer)[i];
    case pcclUint64: return (double)((const uint64_t *)buffer)[i];
    case pcclInt64: return (double)((const int64_t *)buffer)[i];
    case pcclFloat: return ((const float *)buffer)[i];
    case pcclDouble: return ((const double *)buffer)[i];
    default: REQUIRE(false);
    }
    return 0;
}

/* ---- One all-reduce, checked ---- */

typedef struct reduction {
    int world;
    size_t count;
    pcclRedOp_t op;
    bool in_place;
    /* Contributions are all ones. */
    bool ones;
    /* All types, or float alone. */
    bool every_type;
} reduction;

/* What a peer contributes: small numbers, so that no type overflows and every float sum is exact. */
static double contribution(const reduction *r, const typed *t, int index, size_t i) {
    uint32_t mixed = (uint32_t)i * 2654435761u + (uint32_t)index * 40503u;
    double value = (double)((mixed >> 16) % 21u);
    if (r->ones) {
        return 1;
    }
    return is_signed(t->type) ? value - 10 : value;
}

static double expected(const reduction *r, const typed *t, size_t i) {
    double result = contribution(r, t, 0, i);
    int index;
    for (index = 1; index < r->world; index++) {
        double value = contribution(r, t, index, i);
        switch (r->op) {
        case pcclMax: result = value > result ? value : result; break;
        case pcclMin: result = value < result ? value : result; break;
        default: result += value;
        }
    }
    if (r->op == pcclAvg) {
        result /= r->world;
        if (!t->is_float) {
            result = (double)(long long)result;
        }
    }
    return result;
}

static void reduce_one(peer *self, const reduction *r, const typed *t) {
    size_t bytes = r->count * t->size;
    void *send = malloc(bytes);
    void *before = malloc(bytes);
    void *recv = r->in_place ? send : malloc(bytes);
    pcclReduceDescriptor_t d = descriptor(t->type, r->count, r->op, 1);
    size_t i;
    REQUIRE(send != NULL && before != NULL && recv != NULL);
    for (i = 0; i < r->count; i++) {
        put(send, t->type, i, contribution(r, t, self->index, i));
    }
    memcpy(before, send, bytes);

    memset(&self->info, 0xff, sizeof self->info);
    OK(pcclAllReduce(send, recv, &d, self->comm, &self->info));
    REQUIRE(self->info.local_world_size == (uint32_t)r->world);
    for (i = 0; i < r->count; i++) {
        double difference = get(recv, t->type, i) - expected(r, t, i);
        REQUIRE(difference < 1e-5 && difference > -1e-5);
    }
    if (!r->in_place) {
        REQUIRE(memcmp(send, before, bytes) == 0);
        free(recv);
    }
    free(before);
    free(send);

    meet(self);
    if (self->index == 0) {
        uint64_t tx = 0, rx = 0;
        int index;
        for (index = 0; index < r->world; index++) {
            tx += self->all->peers[index].info.tx_bytes;
            rx += self->all->peers[index].info.rx_bytes;
        }
        /* Each element crosses n - 1 edges as a partial sum, and n - 1 as a result. */
        REQUIRE(tx == 2 * (uint64_t)(r->world - 1) * bytes);
        REQUIRE(rx == tx);
    }
    meet(self);
}

static void reduce_body(peer *self) {
    const reduction *r = (const reduction *)self->all->context;
    int i;
    if (!r->every_type) {
        reduce_one(self, r, &FLOAT);
        return;
    }
    for (i = 0; i < TYPE_COUNT; i++) {
        reduce_one(self, r, &TYPES[i]);
    }
}

static void run_body(int world, void (*body)(peer *), void *context) {
    static crowd all;
    memset(&all, 0, sizeof all);
    all.world = world;
    all.body = body;
    all.context = context;
    run_crowd(&all);
}

static void reduce_case(int world, size_t count, pcclRedOp_t op, bool in_place, bool ones, bool every_type) {
    reduction r;
    r.world = world;
    r.count = count;
    r.op = op;
    r.in_place = in_place;
    r.ones = ones;
    r.every_type = every_type;
    run_body(world, reduce_body, &r);
}

/* ---- Quantised ---- */

static void quantised_body(peer *self) {
    /* Two slices of 512 elements: two blocks of codes behind two floats each, or one behind two doubles. */
    static const uint64_t moved[2] = {2 * (512 + 2 * 8), 2 * (512 + 16)};
    int t, i;
    for (t = 0; t < 2; t++) {
        float single[2][1024];
        double twice[2][1024];
        pcclReduceInfo_t info;
        pcclReduceDescriptor_t d = descriptor(t == 0 ? pcclFloat : pcclDouble, 1024, pcclSum, 1);
        d.quantization_options.quantized_datatype = pcclUint8;
        d.quantization_options.algorithm = pcclQuantZeroPointScale;
        for (i = 0; i < 1024; i++) {
            single[0][i] = (float)(42 + self->index);
            twice[0][i] = 42 + self->index;
        }
        if (t == 0) {
            OK(pcclAllReduce(single[0], single[1], &d, self->comm, &info));
        } else {
            OK(pcclAllReduce(twice[0], twice[1], &d, self->comm, &info));
        }
        for (i = 0; i < 1024; i++) {
            REQUIRE(t == 0 ? single[1][i] == 85 : twice[1][i] == 85);
            REQUIRE(t == 0 ? single[0][i] == (float)(42 + self->index) : twice[0][i] == 42 + self->index);
        }
        REQUIRE(info.local_world_size == 2);
        REQUIRE(info.tx_bytes == moved[t] && info.rx_bytes == moved[t]);
    }
}

/* An operation between two moves as much as the buffer has, both ways: half as partial sums, half as results. */
static void counted(const pcclReduceInfo_t *info, size_t bytes) {
    REQUIRE(info->local_world_size == 2);
    REQUIRE(info->tx_bytes == bytes && info->rx_bytes == bytes);
}

/* ---- Calls that must wait for collectives ---- */

static void update_while_open(peer *self) {
    float send[1024] = {1}, recv[1024];
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 1024, pcclSum, 1);
    pcclAsyncReduceOp_t op;
    pcclReduceInfo_t info;
    bool pending = true;
    OK(pcclAllReduceAsync(send, recv, &d, self->comm, &op));
    EXPECT(pcclPendingAsyncOps, pcclUpdateTopology(self->comm));
    EXPECT(pcclPendingAsyncOps, pcclOptimizeTopology(self->comm));
    OK(pcclArePeersPending(self->comm, &pending));
    REQUIRE(!pending);
    OK(pcclAwaitAsyncReduce(&op, &info));
    REQUIRE(recv[0] == 2);
    counted(&info, sizeof send);
    OK(pcclUpdateTopology(self->comm));
    OK(pcclOptimizeTopology(self->comm));
}

static void sync_while_open(peer *self) {
    float send[1024] = {1}, recv[1024];
    uint8_t content[1024];
    pcclTensorInfo_t tensor;
    pcclSharedState_t state;
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 1024, pcclSum, 1);
    pcclAsyncReduceOp_t op;
    pcclReduceInfo_t info;
    pcclSharedStateSyncInfo_t moved = {77, 77};
    memset(content, 7, sizeof content);
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "key1";
    tensor.data = content;
    tensor.count = sizeof content;
    tensor.datatype = pcclUint8;
    state.revision = 0;
    state.count = 1;
    state.infos = &tensor;
    OK(pcclAllReduceAsync(send, recv, &d, self->comm, &op));
    EXPECT(pcclPendingAsyncOps, pcclSynchronizeSharedState(self->comm, &state,
                                                           PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &moved));
    REQUIRE(moved.tx_bytes == 77 && moved.rx_bytes == 77);
    OK(pcclAwaitAsyncReduce(&op, &info));
    REQUIRE(recv[0] == 2);
    counted(&info, sizeof send);
    /* And then it works, and moves nothing where nothing differs. */
    OK(pcclSynchronizeSharedState(self->comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &moved));
    REQUIRE(moved.tx_bytes == 0 && moved.rx_bytes == 0);
}

/* ---- Tags ---- */

static void two_tags(peer *self) {
    enum { COUNT = 1024 };
    float sum_in[COUNT], sum_out[COUNT], max_in[COUNT], max_out[COUNT];
    pcclReduceDescriptor_t sum = descriptor(pcclFloat, COUNT, pcclSum, 123);
    pcclReduceDescriptor_t max = descriptor(pcclFloat, COUNT, pcclMax, 456);
    pcclAsyncReduceOp_t sum_op, max_op;
    pcclReduceInfo_t sum_info, max_info;
    int i;
    for (i = 0; i < COUNT; i++) {
        sum_in[i] = (float)(i + self->index);
        max_in[i] = (float)(self->index == i % 2 ? i : -i);
    }
    OK(pcclAllReduceAsync(sum_in, sum_out, &sum, self->comm, &sum_op));
    OK(pcclAllReduceAsync(max_in, max_out, &max, self->comm, &max_op));
    REQUIRE(sum_op.comm == self->comm && sum_op.tag == 123);
    OK(pcclAwaitAsyncReduce(&sum_op, &sum_info));
    OK(pcclAwaitAsyncReduce(&max_op, &max_info));
    counted(&sum_info, sizeof sum_in);
    counted(&max_info, sizeof max_in);
    for (i = 0; i < COUNT; i++) {
        REQUIRE(sum_out[i] == (float)(2 * i + 1));
        REQUIRE(max_out[i] == (float)i);
    }
}

static void same_tag(peer *self) {
    float send[1024] = {1}, recv[1024], other[1024];
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 1024, pcclSum, 123);
    pcclAsyncReduceOp_t op, refused;
    pcclReduceInfo_t info, untouched;
    bool done = false;
    OK(pcclAllReduceAsync(send, recv, &d, self->comm, &op));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(send, other, &d, self->comm, &refused));
    /* An operation that has ended keeps its tag until it is awaited. */
    while (!done) {
        OK(pcclTestAsyncReduce(&op, &done));
    }
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(send, other, &d, self->comm, &refused));
    EXPECT(pcclPendingAsyncOps, pcclUpdateTopology(self->comm));
    OK(pcclAwaitAsyncReduce(&op, &info));
    REQUIRE(recv[0] == 2);
    counted(&info, sizeof send);
    memset(&info, 0x5a, sizeof info);
    untouched = info;
    EXPECT(pcclRankConnectionLost, pcclAwaitAsyncReduce(&op, &info));
    REQUIRE(memcmp(&info, &untouched, sizeof info) == 0);
    OK(pcclAllReduce(send, recv, &d, self->comm, &info));
    counted(&info, sizeof send);
}

/* ---- Joining ---- */

/* Those of one group reduce together; who is alone in a group is told so, and moves nothing. */
static void reduce_if_together(pcclComm_t *comm, int same) {
    float send[1024] = {1}, recv[1024] = {9};
    pcclReduceDescriptor_t d = descriptor(pcclFloat, 1024, pcclSum, 1);
    pcclReduceInfo_t info = {5, 6, 7};
    if (same) {
        OK(pcclAllReduce(send, recv, &d, comm, &info));
        REQUIRE(recv[0] == 2);
        counted(&info, sizeof send);
    } else {
        EXPECT(pcclTooFewPeers, pcclAllReduce(send, recv, &d, comm, &info));
        REQUIRE(recv[0] == 9 && info.local_world_size == 5 && info.tx_bytes == 6 && info.rx_bytes == 7);
    }
}

static void *late_peer(void *argument) {
    peer *self = (peer *)argument;
    OK(pcclConnect(self->comm));
    REQUIRE(attribute(self->comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 2);
    reduce_if_together(self->comm, self->index);
    return NULL;
}

static void accept_one(uint32_t first_group, uint32_t second_group) {
    crowd all;
    peer second;
    uint16_t port;
    pcclMasterInstance_t *master = start_master(&port);
    pcclComm_t *first = new_peer(port, first_group);
    int same = first_group == second_group;
    memset(&all, 0, sizeof all);
    memset(&second, 0, sizeof second);
    OK(pcclConnect(first));
    REQUIRE(attribute(first, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 1);
    second.all = &all;
    second.index = same;
    second.comm = new_peer(port, second_group);
    REQUIRE(pthread_create(&second.thread, NULL, late_peer, &second) == 0);
    while (attribute(first, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) != 2) {
        OK(pcclUpdateTopology(first));
        REQUIRE(attribute(first, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) <= 2);
    }
    reduce_if_together(first, same);
    pthread_join(second.thread, NULL);
    REQUIRE(attribute(first, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) == (same ? 2 : 1));
    REQUIRE(attribute(first, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS) == (same ? 1 : 2));
    REQUIRE(attribute(first, PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE) == (same ? 2 : 1));
    OK(pcclDestroyCommunicator(second.comm));
    OK(pcclDestroyCommunicator(first));
    stop_master(master);
}

int main(int argc, char **argv) {
    int number = argc == 2 ? atoi(argv[1]) : 0;
    OK(pcclInit());
    switch (number) {
    case 27: reduce_case(2, 203530, pcclSum, false, false, true); break;
    case 28: reduce_case(2, 203530, pcclSum, true, true, true); break;
    case 29: reduce_case(3, 2, pcclSum, false, false, true); break;
    case 30: reduce_case(3, 2, pcclSum, true, false, true); break;
    case 31: reduce_case(3, 3, pcclSum, false, false, true); break;
    case 32: reduce_case(3, 3, pcclSum, true, false, true); break;
    case 33: reduce_case(4, 2, pcclSum, false, false, false); break;
    case 34: reduce_case(4, 2, pcclSum, true, false, false); break;
    case 35: run_body(2, quantised_body, NULL); break;
    case 36: reduce_case(2, 1024, pcclAvg, false, false, true); break;
    case 37: reduce_case(2, 1024, pcclMin, false, false, true); break;
    case 38: reduce_case(2, 1024, pcclMax, false, false, true); break;
    case 39: run_body(2, update_while_open, NULL); break;
    case 40: run_body(2, sync_while_open, NULL); break;
    case 41: reduce_case(3, 1025, pcclSum, false, false, true); break;
    case 42: run_body(2, two_tags, NULL); break;
    case 43: run_body(2, same_tag, NULL); break;
    case 44: accept_one(0, 0); break;
    case 45: accept_one(0, 1); break;
    default: fprintf(stderr, "no scenario %d\n", number); return 2;
    }
    return 0;
}
