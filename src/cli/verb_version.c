/* `tensorbus version`: what is installed, for people and for bug reports. */
#include <string.h>
#include <sys/utsname.h>

#include <tensorbus/status.h>

#include "cli/cli.h"

static const char help[] = "usage: tensorbus version [--json]\n"
                           "\n"
                           "Print the version of tensorbus and of the kernel it runs on.\n"
                           "\n"
                           "  --json    {\"tensorbus\",\"kernel\",\"architecture\"}\n"
                           "\n"
                           "examples:\n"
                           "  tensorbus version\n"
                           "  tensorbus version --json\n";

int tb__verb_version(int argc, char **argv)
{
    int json = 0;
    if (tb__cli_help(argc, argv, help)) {
        return TB__EXIT_OK;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") != 0) {
            return tb__cli_usage("version", "unexpected `%s`", argv[i]);
        }
        json = 1;
    }
    struct utsname system = {0};
    uname(&system);
    if (!json) {
        printf("tensorbus %s (Linux %s, %s)\n", tb_version(), system.release, system.machine);
        return TB__EXIT_OK;
    }
    printf("{\"tensorbus\":");
    tb__cli_json_string(stdout, tb_version());
    printf(",\"kernel\":");
    tb__cli_json_string(stdout, system.release);
    printf(",\"architecture\":");
    tb__cli_json_string(stdout, system.machine);
    printf("}\n");
    return TB__EXIT_OK;
}
