/*
 * Limits of the system, and what the library leaves of the process: with few descriptors, threads or little memory, calls
 * give results and the end is clean; threads have names and block signals; nothing of the process is changed.
 * `limits NAME` runs one.
 */
#include "harness.h"

#include <dirent.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* All that two peers can do, one in a thread of the other's, each call with any result; whether all succeeded. */
enum { COUNT = 1 << 18 };

typedef struct other {
    uint16_t port;
    bool well;
} other;

static bool one_of(pcclResult_t result) {
    REQUIRE(result >= pcclSuccess && result <= pcclTopologyOptimizationFailed);
    REQUIRE(result == pcclSuccess || strlen(pcclGetLastError()) > 10);
    return result == pcclSuccess;
}

static bool course(uint16_t port) {
    pcclCommCreateParams_t params;
    pcclComm_t *comm = NULL;
    pcclTensorInfo_t tensor;
    pcclSharedState_t state;
    pcclReduceDescriptor_t d = descriptor(pcclFloat, COUNT, pcclSum, 1);
    static float memory[2][COUNT];
    static int next;
    float *buffer;
    int tries = 0, world = 1;
    size_t i;
    bool well;
    buffer = memory[__sync_fetch_and_add(&next, 1) & 1];
    memset(&params, 0, sizeof params);
    params.master_address = loopback(port);
    if (!one_of(pcclCreateCommunicator(&params, &comm))) {
        return false;
    }
    OK(pcclSetTimeLimit(comm, 1500));
    well = one_of(pcclConnect(comm));
    while (well && world < 2 && ++tries < 200) {
        OK(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &world));
        well = world == 2 || one_of(pcclUpdateTopology(comm));
        usleep(1000);
    }
    well = well && world == 2;
    if (well) {
        for (i = 0; i < COUNT; i++) {
            buffer[i] = (float)(i % 999);
        }
        well = one_of(pcclAllReduce(buffer, buffer, &d, comm, NULL));
        for (i = 0; i < COUNT; i++) {
            REQUIRE(buffer[i] == (float)(i % 999) * (well ? 2 : 1));
        }
    }
    if (well) {
        memset(&tensor, 0, sizeof tensor);
        tensor.name = "w";
        tensor.data = buffer;
        tensor.count = COUNT;
        tensor.datatype = pcclFloat;
        state.revision = 1;
        state.count = 1;
        state.infos = &tensor;
        well = one_of(
            pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    }
    OK(pcclDestroyCommunicator(comm));
    return well;
}

static void *in_thread(void *argument) {
    other *o = (other *)argument;
    o->well = course(o->port);
    return NULL;
}

/* Master and two peers; whether all went well. */
static bool everything(void) {
    pcclMasterConfig_t config = PCCL_MASTER_CONFIG_INIT;
    pcclMasterInstance_t *master = NULL;
    pthread_t thread;
    pthread_attr_t small;
    other o = {0, false};
    bool well;
    config.listen = "127.0.0.1:0";
    config.peer_timeout_ms = 500;
    if (!one_of(pcclCreateMasterEx(&config, &master))) {
        return false;
    }
    if (one_of(pcclRunMaster(master)) && one_of(pcclGetMasterPort(master, &o.port))) {
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 256 * 1024);
        if (pthread_create(&thread, &small, in_thread, &o) == 0) {
            well = course(o.port);
            pthread_join(thread, NULL);
            well = well && o.well;
        } else {
            well = false;
        }
        pthread_attr_destroy(&small);
    } else {
        well = false;
    }
    OK(pcclDestroyMaster(master));
    return well;
}

/* Runs everything in a child under a limit that `set` puts there; whether all went well. */
static bool limited(void (*set)(long), long value) {
    int status;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(30);
        OK(pcclInit());
        set(value);
        exit(everything() ? 0 : 77);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 77)) {
        fprintf(stderr, "with the limit at %ld: wait status %d\n", value, status);
        exit(1);
    }
    return WEXITSTATUS(status) == 0;
}

static void few_descriptors(long most) {
    struct rlimit limit = {(rlim_t)most, (rlim_t)most};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void few_threads(long most) {
    struct rlimit limit = {(rlim_t)most, (rlim_t)most};
    /* The limit does not hold for the superuser; a number that nobody else has makes the count our own. */
    if (getuid() == 0) {
        uid_t own = 1200000000u + (uid_t)getpid();
        REQUIRE(setgroups(0, NULL) == 0 && setgid((gid_t)own) == 0 && setuid(own) == 0);
    }
    REQUIRE(setrlimit(RLIMIT_NPROC, &limit) == 0);
}

/* Kilobytes of address space. */
static long address_space(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kilobytes = -1;
    while (status != NULL && fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "VmSize:", 7) == 0) {
            kilobytes = strtol(line + 7, NULL, 10);
        }
    }
    if (status != NULL) {
        fclose(status);
    }
    return kilobytes;
}

static void little_memory(long kilobytes) {
    struct rlimit limit;
    limit.rlim_cur = limit.rlim_max = (rlim_t)(address_space() + kilobytes) * 1024;
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
}

/* From nothing to enough: some fail, the last succeeds. */
static void sweep(void (*set)(long), long first, long step, long last) {
    long value;
    int failed = 0;
    for (value = first; value <= last; value += step) {
        failed += !limited(set, value);
    }
    REQUIRE(failed > 0);
    REQUIRE(limited(set, 16 * last));
}

static void descriptors(void) { sweep(few_descriptors, 3, 4, 60); }

static void threads(void) {
    if (getuid() != 0) {
        printf("left out: other processes of this user would count\n");
        return;
    }
    sweep(few_threads, 1, 1, 10);
}

static void memory(void) {
    if (address_space() < 0) {
        printf("left out: the system does not say how much memory there is\n");
        return;
    }
    sweep(little_memory, 0, 1000, 30000);
}

/* ---- What the library leaves of the process ---- */

static const char *const NAMES[] = {"pccl-control", "pccl-data",   "pccl-master", "pccl-sync",
                                    "pccl-state",   "pccl-digest", "pccl-resolve"};

/* Threads of the library; each has one of the names that are documented, and blocks what can be blocked. */
static int library_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int count = 0;
    REQUIRE(tasks != NULL);
    while ((task = readdir(tasks)) != NULL) {
        char path[300], line[256], name[64] = "";
        unsigned long long blocked = 0;
        FILE *status;
        bool known = false;
        size_t i;
        if (task->d_name[0] == '.' || strtol(task->d_name, NULL, 10) == (long)getpid()) {
            continue;
        }
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        status = fopen(path, "r");
        if (status == NULL) {
            continue;
        }
        while (fgets(line, sizeof line, status) != NULL) {
            if (sscanf(line, "Name: %63s", name) != 1) {
                sscanf(line, "SigBlk: %llx", &blocked);
            }
        }
        fclose(status);
        for (i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
            known = known || strcmp(name, NAMES[i]) == 0;
        }
        if (!known) {
            fprintf(stderr, "an undocumented thread %s\n", name);
            exit(1);
        }
        /* All but KILL, STOP and the two that the C library keeps. */
        REQUIRE((blocked | 0x40100ull | 3ull << 31) == ~0ull);
        count++;
    }
    closedir(tasks);
    return count;
}

static int descriptors_open(void) {
    DIR *all = opendir("/proc/self/fd");
    int count = 0;
    while (all != NULL && readdir(all) != NULL) {
        count++;
    }
    if (all != NULL) {
        closedir(all);
    }
    return count;
}

/* What they are, for whoever has to find out which one is too many. */
static void tell_descriptors(void) {
    DIR *all = opendir("/proc/self/fd");
    struct dirent *one;
    while (all != NULL && (one = readdir(all)) != NULL) {
        char path[300], what[300];
        ssize_t length;
        snprintf(path, sizeof path, "/proc/self/fd/%s", one->d_name);
        length = readlink(path, what, sizeof what - 1);
        what[length < 0 ? 0 : length] = '\0';
        fprintf(stderr, "descriptor %s: %s\n", one->d_name, what);
    }
    if (all != NULL) {
        closedir(all);
    }
}

typedef struct process {
    struct sigaction actions[65];
    sigset_t mask;
    mode_t umask_value;
    struct rlimit files, core, stack;
    char folder[4096];
    char *locale;
    int descriptors;
    size_t environment;
} process;

extern char **environ;

static void look(process *p) {
    int i;
    memset(p, 0, sizeof *p);
    for (i = 1; i < 65; i++) {
        sigaction(i, NULL, &p->actions[i]);
    }
    pthread_sigmask(SIG_BLOCK, NULL, &p->mask);
    p->umask_value = umask(0);
    umask(p->umask_value);
    getrlimit(RLIMIT_NOFILE, &p->files);
    getrlimit(RLIMIT_CORE, &p->core);
    getrlimit(RLIMIT_STACK, &p->stack);
    REQUIRE(getcwd(p->folder, sizeof p->folder) != NULL);
    while (environ[p->environment] != NULL) {
        p->environment++;
    }
    p->descriptors = descriptors_open();
}

static void nothing_changed(void) {
    static process before, after;
    pcclMasterInstance_t *master;
    pcclComm_t *comm;
    pcclCommConfig_t config = PCCL_COMM_CONFIG_INIT;
    char named[64];
    uint16_t port;
    int i;
    REQUIRE(library_threads() == 0);
    look(&before);
    OK(pcclInit());
    for (i = 0; i < 3; i++) {
        REQUIRE(everything());
        REQUIRE(library_threads() == 0);
        REQUIRE(descriptors_open() == before.descriptors);
    }
    master = start_master(&port);
    /* A name, so that it is looked up. */
    snprintf(named, sizeof named, "localhost:%u", (unsigned)port);
    config.master = named;
    OK(pcclCreateCommunicatorEx(&config, &comm));
    OK(pcclConnect(comm));
    REQUIRE(library_threads() >= 3);
    OK(pcclDestroyCommunicator(comm));
    stop_master(master);
    /* The thread that looks names up is not joined, and may just be at its end: ten seconds for that. */
    for (i = 0; i < 1000 && (library_threads() != 0 || descriptors_open() != before.descriptors); i++) {
        usleep(10000);
    }
    REQUIRE(library_threads() == 0);
    look(&after);
    for (i = 1; i < 65; i++) {
        REQUIRE(before.actions[i].sa_handler == after.actions[i].sa_handler);
    }
    REQUIRE(memcmp(&before.mask, &after.mask, sizeof before.mask) == 0);
    REQUIRE(before.umask_value == after.umask_value);
    REQUIRE(before.files.rlim_cur == after.files.rlim_cur && before.core.rlim_cur == after.core.rlim_cur);
    REQUIRE(before.stack.rlim_cur == after.stack.rlim_cur);
    REQUIRE(strcmp(before.folder, after.folder) == 0);
    REQUIRE(before.environment == after.environment);
    if (before.descriptors != after.descriptors) {
        fprintf(stderr, "%d descriptors before, %d after\n", before.descriptors, after.descriptors);
        tell_descriptors();
    }
    REQUIRE(before.descriptors == after.descriptors);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"descriptors", descriptors},
        {"threads", threads},
        {"memory", memory},
        {"nothing_changed", nothing_changed},
    };
    size_t i;
    for (i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
            tests[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no such test\n");
    return 2;
}
