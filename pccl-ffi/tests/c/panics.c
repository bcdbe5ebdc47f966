/*
 * A bug in any of the library's threads: calls give results, buffers come back, nothing hangs, the end is clean.
 *
 * `panics WHO ORDER PLACE:N`: one process has a panic planted (the library must be built for that), the other is well.
 * WHO is `peer` or `master`: which of its parts the process plays; ORDER is `first` or `second`: when it joins. Each line
 * of the output is a call and its result; those of the process with the panic begin with `*`.
 */
#include "harness.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 100000, ROUNDS = 12, STATE = 5000000 };

static float buffer[COUNT], before[COUNT], state_data[STATE];
static const char *mark = "";

static void pause_ms(long ms) {
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

/* Tells of a call; whether it succeeded. */
static bool told(const char *call, pcclResult_t result) {
    printf("%s%s %s %s\n", mark, call, pcclGetResultName(result), result == pcclSuccess ? "" : pcclGetLastError());
    fflush(stdout);
    return result == pcclSuccess;
}

static bool reduce(pcclComm_t *comm, int round) {
    pcclReduceDescriptor_t d = descriptor(pcclFloat, COUNT, pcclSum, 7);
    pcclResult_t result;
    size_t i;
    for (i = 0; i < COUNT; i++) {
        before[i] = buffer[i] = (float)(i % 1000) + (float)round;
    }
    result = pcclAllReduce(buffer, buffer, &d, comm, NULL);
    for (i = 0; i < COUNT; i++) {
        /* The sum of two that are equal, or what it was. */
        REQUIRE(buffer[i] == (result == pcclSuccess ? 2 * before[i] : before[i]));
    }
    return told("reduce", result);
}

static bool synchronise(pcclComm_t *comm, uint64_t revision) {
    pcclTensorInfo_t tensor;
    pcclSharedState_t state;
    memset(&tensor, 0, sizeof tensor);
    tensor.name = "weights";
    tensor.data = state_data;
    tensor.count = STATE;
    tensor.datatype = pcclFloat;
    state.revision = revision;
    state.count = 1;
    state.infos = &tensor;
    return told("sync", pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
}

/* All calls there are, until one fails. The first peer lets the second one begin when it has come in, or has failed to. */
static void calls(pcclComm_t *comm, bool first, int tell, int hear) {
    int round, tries = 0;
    bool pending, in;
    char byte = 0;
    size_t i;
    if (!first) {
        REQUIRE(read(hear, &byte, 1) == 1);
    }
    in = told("connect", pcclConnect(comm));
    if (first) {
        REQUIRE(write(tell, &byte, 1) == 1);
    }
    if (!in) {
        return;
    }
    while (attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) < 2) {
        /* The other one may never come. */
        if (++tries > 30 || !told("update", pcclUpdateTopology(comm))) {
            return;
        }
        pause_ms(10);
    }
    /* The second one is behind, and takes what the first one has. */
    for (i = 0; first && i < STATE; i++) {
        state_data[i] = (float)i;
    }
    if (!synchronise(comm, first ? 5 : 0)) {
        return;
    }
    for (i = 0; i < STATE; i++) {
        REQUIRE(state_data[i] == (float)i);
    }
    for (round = 0; round < ROUNDS; round++) {
        if (!reduce(comm, round) || !told("pending", pcclArePeersPending(comm, &pending))) {
            return;
        }
    }
    told("update", pcclUpdateTopology(comm));
}

static void take_part(uint16_t port, bool first, int tell, int hear) {
    pcclComm_t *comm = new_peer(port, 0);
    /* No wait for somebody who has gone wrong in silence. */
    OK(pcclSetTimeLimit(comm, 5000));
    calls(comm, first, tell, hear);
    OK(pcclDestroyCommunicator(comm));
    /* The library is of use afterwards. */
    comm = new_peer(1, 0);
    EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));
}

/* A peer that is another process. */
static pid_t start_peer(uint16_t port, bool first, int tell, int hear, const char *planted) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(40);
        if (planted != NULL) {
            REQUIRE(setenv("PCCL_TEST_PANIC", planted, 1) == 0);
            mark = "*";
        }
        OK(pcclInit());
        take_part(port, first, tell, hear);
        exit(0);
    }
    return child;
}

/* The master, in a process of its own, until a byte comes. */
static pid_t start_keeper(int tell, int hear, const char *planted) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        pcclMasterInstance_t *master;
        pcclMasterConfig_t config = PCCL_MASTER_CONFIG_INIT;
        uint16_t port;
        char byte;
        alarm(45);
        if (planted != NULL) {
            REQUIRE(setenv("PCCL_TEST_PANIC", planted, 1) == 0);
            mark = "*";
        }
        /* A master that is gone is given up after a time that derives from this. */
        config.listen = "127.0.0.1:0";
        config.peer_timeout_ms = 500;
        OK(pcclCreateMasterEx(&config, &master));
        OK(pcclRunMaster(master));
        OK(pcclGetMasterPort(master, &port));
        REQUIRE(write(tell, &port, sizeof port) == sizeof port);
        REQUIRE(read(hear, &byte, 1) == 1);
        told("interrupt", pcclInterruptMaster(master));
        told("await", pcclMasterAwaitTermination(master));
        OK(pcclDestroyMaster(master));
        /* The library is of use afterwards. */
        master = start_master(&port);
        stop_master(master);
        exit(0);
    }
    return child;
}

static void finish(pid_t child) {
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
    int ports[2], stop[2], go[2];
    uint16_t port = 0;
    pid_t keeper, first, second;
    const char *planted;
    bool at_master, at_first;
    REQUIRE(argc == 4);
    planted = argv[3];
    at_master = strcmp(argv[1], "master") == 0;
    at_first = strcmp(argv[2], "first") == 0;
    REQUIRE(pipe(ports) == 0 && pipe(stop) == 0 && pipe(go) == 0);
    keeper = start_keeper(ports[1], stop[0], at_master ? planted : NULL);
    REQUIRE(read(ports[0], &port, sizeof port) == sizeof port);
    first = start_peer(port, true, go[1], go[0], !at_master && at_first ? planted : NULL);
    second = start_peer(port, false, go[1], go[0], !at_master && !at_first ? planted : NULL);
    finish(first);
    finish(second);
    REQUIRE(write(stop[1], "", 1) == 1);
    finish(keeper);
    return 0;
}
