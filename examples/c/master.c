/*
 * The master of a run.
 *
 *   master [PORT]        listens on all interfaces; the default port is 48148
 *   master HOST:PORT     listens there; port 0 takes any free one
 *
 * Prints the port when it listens. Ends, in good order, at SIGINT or SIGTERM.
 */
#define _POSIX_C_SOURCE 200809L

#include <pccl.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    pcclMasterConfig_t config = PCCL_MASTER_CONFIG_INIT;
    pcclMasterInstance_t *master = NULL;
    char listen[256];
    uint16_t port = 0;
    sigset_t signals;
    int received = 0;
    const char *where = argc > 1 ? argv[1] : "48148";

    /* Blocked before the master starts, so that no thread is interrupted, and taken in below. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    snprintf(listen, sizeof listen, "%s%s", strchr(where, ':') == NULL ? "0.0.0.0:" : "", where);
    config.listen = listen;
    if (pcclInit() != pcclSuccess || pcclCreateMasterEx(&config, &master) != pcclSuccess ||
        pcclRunMaster(master) != pcclSuccess || pcclGetMasterPort(master, &port) != pcclSuccess) {
        fprintf(stderr, "master: %s\n", pcclGetLastError());
        pcclDestroyMaster(master);
        return 1;
    }
    printf("listening on port %u\n", (unsigned)port);
    fflush(stdout);

    sigwait(&signals, &received);
    pcclInterruptMaster(master);
    pcclMasterAwaitTermination(master);
    pcclDestroyMaster(master);
    return 0;
}
