/*
 * A worker that trains as long as others do, whatever happens to them: one to start from.
 *
 *   worker MASTER_HOST:PORT STEPS [SEED]
 *
 * Start a master and two or more of these; start more, or kill some, at any time. The "model" is a vector of floats
 * that all workers pull towards the average of their own targets; every worker prints the same checksum for a step.
 *
 * A run is the loop below: admit newcomers, agree on the state, compute, all-reduce, step. What makes it survive is
 * that an all-reduce is repeated with those that are left, and that any other call that fails sends it back to the top
 * of the loop, where the world is looked at anew. Nothing is torn then: an in-place buffer of a failed operation holds
 * what it held before.
 */
#define _POSIX_C_SOURCE 200809L

#include <pccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    WEIGHTS = 20000,
    /* The gradient travels in several operations, all in flight together. */
    PARTS = 4,
    CONNECT_TRIES = 15,
    /* Failures without a step between them: the master is gone for good. */
    MOST_FAILURES = 150
};

typedef struct trainer {
    pcclComm_t *comm;
    /* Revision of the state: the number of steps that it has seen. */
    pcclSharedState_t state;
    pcclTensorInfo_t tensor;
    float weights[WEIGHTS];
    float gradient[WEIGHTS];
    float target;
} trainer;

static void pause_for(long milliseconds) {
    struct timespec time;
    time.tv_sec = milliseconds / 1000;
    time.tv_nsec = milliseconds % 1000 * 1000000;
    nanosleep(&time, NULL);
}

static int world_size(const trainer *t) {
    int size = 1;
    pcclGetAttribute(t->comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE, &size);
    return size;
}

static void complain(const char *what) { fprintf(stderr, "%s: %s\n", what, pcclGetLastError()); }

/* The first worker is in at once; later ones are in when the others admit them. */
static bool connect_to_run(trainer *t) {
    int i;
    for (i = 0; i < CONNECT_TRIES; i++) {
        if (pcclConnect(t->comm) == pcclSuccess) {
            return true;
        }
        complain("connect");
        pause_for(200);
    }
    return false;
}

/* Admits newcomers. After an eviction, or when the master was away for too long, this joins the run again. */
static bool update(trainer *t) {
    if (pcclUpdateTopology(t->comm) == pcclSuccess) {
        return true;
    }
    complain("update");
    pause_for(200);
    return false;
}

/* Everybody gets the state that most have: newcomers the present one; those that have it get nothing. */
static bool synchronise(trainer *t) {
    pcclSharedStateSyncInfo_t info = {0, 0};
    if (pcclSynchronizeSharedState(t->comm, &t->state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info) !=
        pcclSuccess) {
        complain("synchronise");
        return false;
    }
    if (info.rx_bytes > 0) {
        printf("took the state of step %llu from others\n", (unsigned long long)t->state.revision);
    }
    return true;
}

static void compute_gradient(trainer *t) {
    size_t i;
    for (i = 0; i < WEIGHTS; i++) {
        t->gradient[i] = t->weights[i] - (t->target + (float)(i % 16));
    }
}

/*
 * Averages the gradient over all workers. Workers that die in the middle are left out and the rest is repeated. The last
 * one takes the step alone: the state has been synchronised at this revision, so the next time there must be a greater
 * one. Not if it is alone since it was evicted: the others have gone on, and it fetches what they have.
 */
static bool average_gradient(trainer *t, pcclReduceInfo_t *info) {
    pcclReduceOpDescriptor_t parts[PARTS];
    pcclResult_t result;
    uint64_t id;
    size_t begin = 0;
    int i;
    memset(parts, 0, sizeof parts);
    for (i = 0; i < PARTS; i++) {
        size_t end = WEIGHTS * (size_t)(i + 1) / PARTS;
        parts[i].sendbuf = t->gradient + begin;
        parts[i].recvbuf = t->gradient + begin;
        parts[i].descriptor.count = end - begin;
        parts[i].descriptor.op = pcclAvg;
        parts[i].descriptor.tag = (uint64_t)i;
        parts[i].descriptor.src_descriptor.datatype = pcclFloat;
        parts[i].descriptor.quantization_options.quantized_datatype = pcclFloat;
        parts[i].descriptor.quantization_options.algorithm = pcclQuantNone;
        begin = end;
    }
    result = pcclAllReduceMultipleWithRetry(parts, PARTS, t->comm, info, PARTS);
    if (result != pcclSuccess) {
        complain("average");
    }
    if (result == pcclTooFewPeers && pcclGetMemberId(t->comm, &id) == pcclSuccess) {
        info->local_world_size = 1;
        return true;
    }
    return result == pcclSuccess;
}

static void step(trainer *t) {
    size_t i;
    for (i = 0; i < WEIGHTS; i++) {
        t->weights[i] -= 0.125f * t->gradient[i];
    }
    t->state.revision++;
}

static unsigned checksum(const trainer *t) {
    const unsigned char *bytes = (const unsigned char *)t->weights;
    unsigned sum = 2166136261u;
    size_t i;
    for (i = 0; i < sizeof t->weights; i++) {
        sum = (sum ^ bytes[i]) * 16777619u;
    }
    return sum;
}

static void train(trainer *t, unsigned long long steps) {
    bool first = true;
    int failures = 0;
    while (t->state.revision < steps && failures < MOST_FAILURES) {
        pcclReduceInfo_t info = {0, 0, 0};
        /* Not in the first turn: whoever has just been admitted goes on where the others are. */
        if (!first && !update(t)) {
            failures++;
            continue;
        }
        first = false;
        if (world_size(t) < 2) {
            failures = 0;
            pause_for(20);
            continue;
        }
        if (!synchronise(t)) {
            failures++;
            continue;
        }
        if (t->state.revision >= steps) {
            continue;
        }
        compute_gradient(t);
        if (!average_gradient(t, &info)) {
            failures++;
            continue;
        }
        failures = 0;
        step(t);
        printf("step %llu of %u workers: %08x\n", (unsigned long long)t->state.revision, info.local_world_size,
               checksum(t));
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    static trainer t;
    pcclCommConfig_t config = PCCL_COMM_CONFIG_INIT;
    if (argc < 3) {
        fprintf(stderr, "usage: worker MASTER_HOST:PORT STEPS [SEED]\n");
        return 2;
    }
    t.target = argc > 3 ? (float)atoi(argv[3]) : 0;
    t.tensor.name = "weights";
    t.tensor.data = t.weights;
    t.tensor.count = WEIGHTS;
    t.tensor.datatype = pcclFloat;
    t.tensor.device_type = pcclDeviceCpu;
    t.state.count = 1;
    t.state.infos = &t.tensor;

    config.master = argv[1];
    config.name = argc > 3 ? argv[3] : "";
    if (pcclInit() != pcclSuccess || pcclCreateCommunicatorEx(&config, &t.comm) != pcclSuccess) {
        complain("create");
        return 1;
    }
    if (!connect_to_run(&t)) {
        pcclDestroyCommunicator(t.comm);
        return 1;
    }
    train(&t, strtoull(argv[2], NULL, 10));
    pcclDestroyCommunicator(t.comm);
    return t.state.revision < strtoull(argv[2], NULL, 10);
}
