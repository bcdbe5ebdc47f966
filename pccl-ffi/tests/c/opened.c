/*
 * The library opened, closed, and opened again, while a thread that has called it goes on and ends later. Closing does not
 * take the code away that runs at the thread's end.
 * `opened LIBRARY`
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*initialize)(void);

typedef struct steps {
    pthread_barrier_t called, closed;
    const char *library;
} steps;

static void *open_library(const char *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static void call(void *library) {
    initialize init;
    *(void **)&init = dlsym(library, "pcclInit");
    if (init == NULL || init() != 0) {
        fprintf(stderr, "not initialised\n");
        exit(1);
    }
}

static void *in_thread(void *argument) {
    steps *s = (steps *)argument;
    void *library = open_library(s->library);
    call(library);
    dlclose(library);
    pthread_barrier_wait(&s->called);
    pthread_barrier_wait(&s->closed);
    return NULL;
}

int main(int argc, char **argv) {
    static steps s;
    pthread_t thread;
    void *library;
    if (argc != 2) {
        return 2;
    }
    s.library = argv[1];
    pthread_barrier_init(&s.called, NULL, 2);
    pthread_barrier_init(&s.closed, NULL, 2);
    library = open_library(s.library);
    if (pthread_create(&thread, NULL, in_thread, &s) != 0) {
        return 1;
    }
    pthread_barrier_wait(&s.called);
    dlclose(library);
    pthread_barrier_wait(&s.closed);
    pthread_join(thread, NULL);
    library = open_library(s.library);
    call(library);
    dlclose(library);
    return 0;
}
