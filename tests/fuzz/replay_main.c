/* main() of a fuzz target in the ordinary test run: feeds every file of the directory $TB_CORPUS
 * (and of the paths on the command line: files or directories) to LLVMFuzzerTestOneInput, each from
 * a heap block of exactly its size, so that a sanitizer sees a read past the end. A corpus that is
 * missing or empty fails: a replay of nothing proves nothing. One thread. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CORPUS_FILE_MAX (16u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path, long long size)
{
    if (size < 0 || size > CORPUS_FILE_MAX) {
        fprintf(stderr, "%s: %lld bytes: more than a corpus file may have\n", path, size);
        return -1;
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    size_t got = data != NULL ? fread(data, 1, (size_t)size, file) : 0;
    fclose(file);
    if (data == NULL || got != (size_t)size) {
        fprintf(stderr, "%s: could not be read whole\n", path);
        free(data);
        return -1;
    }
    LLVMFuzzerTestOneInput(data, got);
    free(data);
    return 0;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Returns how many files were replayed, -1 on a failure. The name of the one in hand is left in the
 * output when a file kills the target. */
static int replay(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    if (!S_ISDIR(info.st_mode)) {
        printf("replay %s\n", path);
        fflush(stdout);
        return replay_file(path, (long long)info.st_size) == 0 ? 1 : -1;
    }
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, is_visible, alphasort);
    if (count < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return -1;
    }
    int done = 0;
    for (int i = 0; i < count; i++) {
        char name[4096];
        int length = snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        int one = length > 0 && (size_t)length < sizeof name ? replay(name) : -1;
        done = one < 0 || done < 0 ? -1 : done + one;
        free(entries[i]);
    }
    free(entries);
    return done;
}

int main(int argc, char **argv)
{
    const char *corpus = getenv("TB_CORPUS");
    int done = 0;
    if (argc < 2 && corpus == NULL) {
        fprintf(stderr, "usage: TB_CORPUS=DIRECTORY %s, or %s FILE...\n", argv[0], argv[0]);
        return 2;
    }
    for (int i = 1; i < argc && done >= 0; i++) {
        int one = replay(argv[i]);
        done = one < 0 ? -1 : done + one;
    }
    if (argc < 2) {
        done = replay(corpus);
    }
    if (done <= 0) {
        fprintf(stderr, "%s: nothing was replayed\n", argc < 2 ? corpus : argv[1]);
        return 1;
    }
    printf("%d inputs replayed\n", done);
    return 0;
}
