/* A C library's file calls with faults in them: LD_PRELOAD of benchmarks/faults.py, which describes the folder RETEMPER_FAULTS.
 *
 * It counts the calls of a plan's places (role of the process, class of the path, operation) in memory that all processes share,
 * and at the planned count kills the process, tears the write, or has the call fail. With `journal`, it records what a power cut
 * could undo: new, renamed and removed names, replaced content, and every fsync. Linux, glibc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 4
typedef struct { char kind[8], op[8], class[16], role[96]; long at; double part; } Fault;
typedef struct { atomic_int dead, full; atomic_long saved, counts[MOST], hits[MOST]; } Shared;
enum { GO, FAIL, TEAR }; /* what a call does: as usual, fail with errno, or write only a part */

static char root[PATH_MAX], folder[PATH_MAX], role[128];
static size_t root_length;
static Fault faults[MOST];
static int known, ready, census, journal;
static Shared *shared;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside;

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int real_open(const char *path, int flags, mode_t mode) {
    static int (*real)(const char *, int, ...);
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return real(path, flags | O_CLOEXEC, mode);
}
static ssize_t real_write(int file, const void *data, size_t size) { REAL(write); return real(file, data, size); }

static void note(const char *name, const char *line) { /* one line, which other processes cannot interleave */
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = real_open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (file >= 0) { if (real_write(file, line, strlen(line)) < 0) abort(); close(file); }
}

static void after_fork(void) { role[0] = 0; inside = 0; pthread_mutex_init(&guard, NULL); }

static int start(void) { /* the environment may come later than the process: a fork takes that of its client */
    if (ready) return 1;
    const char *name = getenv("RETEMPER_FAULTS");
    if (!name || !*name) return 0;
    pthread_mutex_lock(&guard);
    if (!ready) {
        char path[PATH_MAX + 16], line[2 * PATH_MAX];
        snprintf(folder, sizeof folder, "%s", name);
        snprintf(path, sizeof path, "%s/plan", folder);
        FILE *(*open_stream)(const char *, const char *) = (FILE * (*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen64");
        FILE *plan = open_stream(path, "re");
        snprintf(path, sizeof path, "%s/shared", folder);
        int file = real_open(path, O_RDWR, 0);
        if (!plan || file < 0) { pthread_mutex_unlock(&guard); return 0; }
        while (fgets(line, sizeof line, plan)) {
            Fault *f = &faults[known];
            line[strcspn(line, "\n")] = 0;
            if (!strncmp(line, "root ", 5)) snprintf(root, sizeof root, "%s", line + 5);
            else if (!strcmp(line, "census")) census = 1;
            else if (!strcmp(line, "journal")) journal = 1;
            else if (known < MOST && sscanf(line, "fault %7s %7s %15s %95s %ld %lf", f->kind, f->op, f->class, f->role, &f->at, &f->part) == 6) known++;
        }
        fclose(plan);
        shared = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        root_length = strlen(root);
        pthread_atfork(NULL, NULL, after_fork);
        ready = 1;
    }
    pthread_mutex_unlock(&guard);
    return 1;
}

/* The class of a path below the root; NULL for any other path. */
static const char *class_of(const char *path) {
    static const struct { const char *begin, *class; } classes[] = {
        {"data/", "outs"}, {".dvc/cache/files/", "objects"}, {".dvc/cache/runs/", "runs"}, {".dvc/cache/made/", "made"},
        {"dvc.lock", "lock"}, {".dvc/", "dvc"}, {".retemper/scratch/", "scratch"}, {".retemper/shards/", "shards"},
        {".retemper/code/", "code"}, {".retemper/logs/", "logs"}, {".retemper/prefect", "prefect"}, {".retemper/", "records"}, {".git/", "git"}, {"remote/", "remote"}};
    if (strncmp(path, root, root_length) || path[root_length] != '/') return NULL;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (!strncmp(path + root_length + 1, classes[i].begin, strlen(classes[i].begin))) return classes[i].class;
    return "other";
}

/* What this process is in a run: flow, dvc:STAGE, stage:STAGE ... A fork of the prepared Python has the title of its command. */
static const char *own_role(void) {
    if (role[0]) return role;
    char words[8192], found[128], path[] = "/proc/self/cmdline";
    int file = real_open(path, O_RDONLY, 0);
    ssize_t size = file < 0 ? 0 : read(file, words, sizeof words - 1);
    if (file >= 0) close(file);
    for (ssize_t i = 0; i < size; i++) if (!words[i]) words[i] = ' ';
    while (size > 0 && words[size - 1] == ' ') size--;
    words[size < 0 ? 0 : size] = 0;
    const char *stage = getenv("DVC_STAGE"), *of_dvc = strstr(words, "flows.storage.dvc "), *last = strrchr(words, ' ');
    if (strstr(words, "fork_client.py") || strstr(words, "fork_server.py") || strstr(words, "tether.py")) strcpy(found, "starter");
    else if (stage && *stage) snprintf(found, sizeof found, "stage:%.90s", stage);
    else if (of_dvc) snprintf(found, sizeof found, "dvc:%.90s", last ? last + 1 : "");
    else if (strstr(words, "flows.cli") || strstr(words, "tests.forked")) strcpy(found, "flow");
    else strcpy(found, strstr(words, "git") ? "git" : "other");
    pthread_mutex_lock(&guard);
    strcpy(role, found);
    pthread_mutex_unlock(&guard);
    return role;
}

static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

static void absolute(char *to, int at, const char *path) { /* without resolving links: the root has none */
    char base[PATH_MAX] = "", link[64];
    if (path[0] == '/') { snprintf(to, PATH_MAX, "%s", path); return; }
    snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
    ssize_t size = readlink(link, base, sizeof base - 1);
    base[size < 0 ? 0 : size] = 0;
    while (!strncmp(path, "./", 2)) path += 2;
    if (snprintf(to, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) to[0] = 0;
}

static int of_file(char *to, int file) { /* the path of a regular file or folder that is open */
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, to, PATH_MAX - 1);
    if (size <= 0 || to[0] != '/') return 0;
    to[size] = 0;
    return 1;
}

static int has_room(int file, size_t size) { /* bytes that are there already are written even on a full disk */
    struct stat status;
    off_t place = lseek(file, 0, SEEK_CUR);
    return file >= 0 && !fstat(file, &status) && !(fcntl(file, F_GETFL) & O_APPEND) && place + (off_t)size <= status.st_size;
}

/* Every call comes by here. `after`: kill once the call is done. */
static int event(const char *op, const char *path, int file, size_t size, double *part, int *after) {
    const char *class = class_of(path);
    int verdict = GO, takes = !strcmp(op, "write") || !strcmp(op, "open") || !strcmp(op, "mkdir");
    *after = 0;
    if (!class) return GO;
    if (shared->dead) die();
    if (census) {
        char line[512];
        snprintf(line, sizeof line, "%s %s %s\n", own_role(), op, class);
        note("census", line);
    }
    for (int i = 0; i < known; i++) {
        Fault *f = &faults[i];
        if (strcmp(f->op, op) || strcmp(f->class, class) || strcmp(f->role, own_role())) continue;
        if (atomic_fetch_add(&shared->counts[i], 1) + 1 != f->at) continue;
        char line[PATH_MAX + 512];
        snprintf(line, sizeof line, "%s %s %s %s %ld\t%s\n", f->kind, f->op, f->class, f->role, f->at, path + root_length + 1);
        note("hits", line);
        atomic_fetch_add(&shared->hits[i], 1);
        *part = f->part;
        if (!strcmp(f->kind, "kill")) { if (f->part < .5) die(); *after = 1; }
        else if (!strcmp(f->kind, "cut")) { if (f->part < .5) { shared->dead = 1; die(); } *after = 2; }
        else if (!strcmp(f->kind, "torn")) { verdict = TEAR; *after = 1; }
        else if (!strcmp(f->kind, "EIO")) { errno = EIO; return FAIL; }
        else if (!strcmp(f->kind, "ENOSPC")) { shared->full = 1; if (takes && !has_room(file, size) && size > 1 && f->part > .5) return TEAR; }
    }
    if (shared->full && takes && !has_room(file, size)) { errno = ENOSPC; return FAIL; }
    return verdict;
}
static void finish(int after) { if (after == 2) shared->dead = 1; if (after) { int e = errno; die(); errno = e; } }

/* The journal: what a power cut could undo. Saved content lies in FOLDER/saved, on the same file system. */
static long save(const char *path, int copy) {
    struct stat status;
    if (lstat(path, &status) || !S_ISREG(status.st_mode)) return -1;
    long number = atomic_fetch_add(&shared->saved, 1);
    char to[PATH_MAX + 64];
    snprintf(to, sizeof to, "%s/saved/%ld", folder, number);
    REAL(link);
    if (!copy) return real(path, to) ? -1 : number;
    int in = real_open(path, O_RDONLY, 0), out = real_open(to, O_WRONLY | O_CREAT, 0644);
    char data[65536];
    for (ssize_t n; (n = read(in, data, sizeof data)) > 0;) if (real_write(out, data, n) != n) abort();
    close(in); close(out);
    return number;
}
static void record(const char *what, const struct stat *status, long number, const char *path, const char *to) {
    char line[2 * PATH_MAX + 128];
    int e = errno;
    snprintf(line, sizeof line, "%s\t%lu\t%ld\t%ld\t%s\t%s\n", what, status ? (unsigned long)status->st_ino : 0, status ? (long)status->st_size : 0, number, path, to);
    note("journal", line);
    errno = e;
}

#define LEAVE(value) do { __typeof__(value) _v = (value); int _e = errno; inside = 0; errno = _e; return _v; } while (0)

static int do_open(int at, const char *name, int flags, mode_t mode, int (*real)(int, const char *, int, ...)) {
    int writes = (flags & O_ACCMODE) != O_RDONLY;
    if (inside || !writes || (flags & O_TMPFILE) == O_TMPFILE || !start()) return real(at, name, flags, mode);
    char path[PATH_MAX];
    struct stat before, now;
    double part; int after;
    inside = 1;
    absolute(path, at, name);
    int existed = !lstat(path, &before);
    const char *op = existed ? "reopen" : "open";
    if (!existed && !(flags & O_CREAT)) LEAVE(real(at, name, flags, mode));
    if (event(op, path, -1, 1, &part, &after) == FAIL) LEAVE(-1);
    int ours = journal && class_of(path);
    long saved = ours && existed && (flags & O_TRUNC) && before.st_size && before.st_size < (64 << 20) ? save(path, 1) : -1;
    int file = real(at, name, flags, mode);
    if (ours && file >= 0 && !fstat(file, &now) && S_ISREG(now.st_mode)) record(existed ? "reopen" : "create", &now, saved, path, "");
    finish(after);
    LEAVE(file);
}
#define MODE mode_t mode = 0; if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
int openat(int at, const char *path, int flags, ...) { MODE REAL(openat); return do_open(at, path, flags, mode, real); }
int openat64(int at, const char *path, int flags, ...) { MODE REAL(openat64); return do_open(at, path, flags | O_LARGEFILE, mode, real); }
int open(const char *path, int flags, ...) { MODE REAL(openat64); return do_open(AT_FDCWD, path, flags, mode, real); }
int open64(const char *path, int flags, ...) { MODE REAL(openat64); return do_open(AT_FDCWD, path, flags | O_LARGEFILE, mode, real); }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

FILE *fopen64(const char *path, const char *how) { /* with our open: the real one would not come by here */
    REAL(fopen64);
    if (how[0] == 'r' && !strchr(how, '+')) return real(path, how);
    int flags = (strchr(how, '+') ? O_RDWR : O_WRONLY) | (strchr(how, 'e') ? O_CLOEXEC : 0) | (strchr(how, 'x') ? O_EXCL : 0);
    flags |= how[0] == 'w' ? O_CREAT | O_TRUNC : how[0] == 'a' ? O_CREAT | O_APPEND : 0;
    int file = open64(path, flags, 0666);
    FILE *stream = file < 0 ? NULL : fdopen(file, how);
    if (file >= 0 && !stream) close(file);
    return stream;
}
FILE *fopen(const char *path, const char *how) { return fopen64(path, how); }

/* Writes: `part` of the bytes where torn (the process is then killed) or where the disk becomes full (a short write). */
#define WRITE(file, size, call, shorter)                                                         \
    if (inside || !start()) return call;                                                         \
    char path[PATH_MAX]; double part = 0; int after = 0;                                         \
    inside = 1;                                                                                  \
    if (!of_file(path, file)) LEAVE(call);                                                       \
    int verdict = event("write", path, file, size, &part, &after);                               \
    if (verdict == FAIL) LEAVE((ssize_t)-1);                                                     \
    ssize_t done;                                                                                \
    if (verdict == TEAR) { size_t some = (size_t)(part * (double)(size)); if (!after && !some) some = 1; done = some ? shorter : 0; } else done = call; \
    finish(after);                                                                               \
    LEAVE(done);
ssize_t write(int file, const void *data, size_t size) { REAL(write); WRITE(file, size, real(file, data, size), real(file, data, some)) }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { REAL(pwrite64); WRITE(file, size, real(file, data, size, at), real(file, data, some, at)) }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return pwrite64(file, data, size, at); }
ssize_t sendfile64(int file, int in, off64_t *at, size_t size);
ssize_t sendfile64(int file, int in, off64_t *at, size_t size) {
    REAL(sendfile64);
    struct stat status; /* callers ask for more than there is */
    if (!inside && !fstat(in, &status) && S_ISREG(status.st_mode)) {
        off_t place = at ? *at : lseek(in, 0, SEEK_CUR);
        if (place >= 0 && (size_t)(status.st_size - place) < size) size = status.st_size > place ? status.st_size - place : 0;
    }
    if (!size) return 0;
    WRITE(file, size, real(file, in, at, size), real(file, in, at, some))
}
ssize_t sendfile(int file, int in, off_t *at, size_t size);
ssize_t sendfile(int file, int in, off_t *at, size_t size) { return sendfile64(file, in, at, size); }
ssize_t copy_file_range(int in, off64_t *from, int file, off64_t *at, size_t size, unsigned flags) {
    REAL(copy_file_range); WRITE(file, size, real(in, from, file, at, size, flags), real(in, from, file, at, some, flags)) }
ssize_t writev(int file, const struct iovec *parts, int count) { REAL(writev);
    size_t size = 0; for (int i = 0; i < count; i++) size += parts[i].iov_len;
    WRITE(file, size, real(file, parts, count), (some > parts[0].iov_len && count > 1 ? real(file, parts, 1) : real_write(file, parts[0].iov_base, some < parts[0].iov_len ? some : parts[0].iov_len))) }
size_t fwrite(const void *data, size_t each, size_t count, FILE *stream) { REAL(fwrite);
    int file = fileno(stream); size_t size = each * count;
    if (inside || file < 3 || !size || !start()) return real(data, each, count, stream);
    char path[PATH_MAX]; double part = 0; int after = 0;
    inside = 1;
    if (!of_file(path, file)) LEAVE(real(data, each, count, stream));
    int verdict = event("write", path, file, size, &part, &after);
    if (verdict == FAIL) LEAVE((size_t)0);
    if (verdict == TEAR) { size_t some = (size_t)(part * (double)size); real(data, 1, some, stream); fflush(stream); finish(after); errno = ENOSPC; LEAVE(some / each); }
    size_t done = real(data, each, count, stream);
    if (after) fflush(stream);
    finish(after);
    LEAVE(done);
}

static int do_sync(int file, int (*real)(int)) {
    if (inside || !start()) return real(file);
    char path[PATH_MAX]; struct stat status; double part; int after;
    inside = 1;
    if (!of_file(path, file)) LEAVE(real(file));
    if (event("fsync", path, file, 0, &part, &after) == FAIL) LEAVE(-1);
    int done = 0; /* nothing is really flushed: no power is cut, and a disk's time is saved */
    if (journal && class_of(path) && !fstat(file, &status)) record("fsync", &status, -1, path, "");
    finish(after);
    LEAVE(done);
}
int fsync(int file) { REAL(fsync); return do_sync(file, real); }
int fdatasync(int file) { REAL(fdatasync); return do_sync(file, real); }

static int do_rename(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    static int (*real)(int, const char *, int, const char *, unsigned);
    if (!real) real = (int (*)(int, const char *, int, const char *, unsigned))dlsym(RTLD_NEXT, "renameat2");
    if (inside || !start()) return real(from_at, from, to_at, to, flags);
    char old[PATH_MAX], new[PATH_MAX]; struct stat status; double part; int after;
    inside = 1;
    absolute(old, from_at, from); absolute(new, to_at, to);
    if (event("rename", new, -1, 0, &part, &after) == FAIL) LEAVE(-1);
    int ours = journal && class_of(new) && !lstat(old, &status);
    long saved = ours ? save(new, 0) : -1;
    int done = real(from_at, from, to_at, to, flags);
    if (ours && !done) record("rename", &status, saved, old, new);
    finish(after);
    LEAVE(done);
}
int rename(const char *from, const char *to) { return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return do_rename(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return do_rename(a, from, b, to, flags); }

static int do_unlink(int at, const char *name, int flags) {
    REAL(unlinkat);
    if (inside || !start()) return real(at, name, flags);
    char path[PATH_MAX]; struct stat status; double part; int after;
    inside = 1;
    absolute(path, at, name);
    if (event("unlink", path, -1, 0, &part, &after) == FAIL) LEAVE(-1);
    int ours = journal && class_of(path) && !lstat(path, &status);
    long saved = ours && !flags ? save(path, 0) : -1;
    int done = real(at, name, flags);
    if (ours && !done) record(flags ? "rmdir" : "unlink", &status, saved, path, "");
    finish(after);
    LEAVE(done);
}
int unlink(const char *path) { return do_unlink(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return do_unlink(at, path, flags); }
int rmdir(const char *path) { return do_unlink(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) { struct stat s; return !lstat(path, &s) && S_ISDIR(s.st_mode) ? rmdir(path) : unlink(path); }

static int do_mkdir(int at, const char *name, mode_t mode) {
    REAL(mkdirat);
    if (inside || !start()) return real(at, name, mode);
    char path[PATH_MAX]; struct stat status; double part; int after;
    inside = 1;
    absolute(path, at, name);
    after = 0;
    if (lstat(path, &status) && event("mkdir", path, -1, 0, &part, &after) == FAIL) LEAVE(-1);
    int done = real(at, name, mode);
    if (journal && !done && class_of(path) && !lstat(path, &status)) record("mkdir", &status, -1, path, "");
    finish(after);
    LEAVE(done);
}
int mkdir(const char *path, mode_t mode) { return do_mkdir(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return do_mkdir(at, path, mode); }

static int do_link(int a, const char *from, int b, const char *to, int flags) {
    REAL(linkat);
    if (inside || !start()) return real(a, from, b, to, flags);
    char path[PATH_MAX]; struct stat status; double part; int after;
    inside = 1;
    absolute(path, b, to);
    if (event("open", path, -1, 1, &part, &after) == FAIL) LEAVE(-1);
    int done = real(a, from, b, to, flags);
    if (journal && !done && class_of(path) && !lstat(path, &status)) record("link", &status, -1, path, "");
    finish(after);
    LEAVE(done);
}
int link(const char *from, const char *to) { return do_link(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) { return do_link(a, from, b, to, flags); }
