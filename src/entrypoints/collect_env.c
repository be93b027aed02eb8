// `vllm collect-env`: facts about the machine and the build, for a report of a fault.
#include <ctype.h>
#include <curl/curl.h>
#include <dirent.h>
#include <event2/event.h>
#include <jansson.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zmq.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/memory.h"
#include "entrypoints/entrypoints.h"

enum { LABEL_WIDTH = 22, LINE_BYTES = 8192 };

static void print_fact(const char *label, const char *format, ...) PRINTF_FORMAT(2, 3);
static void print_fact(const char *label, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%-*s", LABEL_WIDTH, label);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

/** The value of the first "key : value" line of a /proc file; false when there is none. */
static bool proc_value(const char *path, const char *key, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    char line[LINE_BYTES];
    bool found = false;
    size_t key_len = strlen(key);
    while (!found && fgets(line, sizeof(line), file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, key_len) != 0 ||
            (line[key_len] != ':' && !isspace((unsigned char)line[key_len])))
            continue;
        struct str value = str_trim(str_from(colon + 1));
        snprintf(out, size, STR_FORMAT, STR_ARG(value));
        found = true;
    }
    fclose(file);
    return found;
}

/** The first line of a file; false when it cannot be read. */
static bool first_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool found = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (found)
        out[strcspn(out, "\n")] = '\0';
    return found;
}

static void print_flags(void)
{
    static const char *const wanted[] = {
        "sse4_2",   "avx",      "f16c",        "fma",         "avx2",        "avx_vnni", "avx512f",
        "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8",
        "amx_bf16", "asimd",    "asimddp",     "bf16",        "i8mm",        "sve",
    };
    char flags[LINE_BYTES];
    if (!proc_value("/proc/cpuinfo", "flags", flags, sizeof(flags)) &&
        !proc_value("/proc/cpuinfo", "Features", flags, sizeof(flags)))
        return;
    struct buf line = {0};
    for (struct str rest = str_from(flags); rest.len > 0;) {
        struct str flag = str_split(&rest, ' ');
        for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
            if (str_eq_c(flag, wanted[i]))
                buf_printf(&line, "%s ", wanted[i]);
        }
    }
    print_fact("CPU flags", STR_FORMAT, STR_ARG(str_trim(buf_str(&line))));
    buf_deinit(&line);
}

static int count_numa_nodes(void)
{
    DIR *dir = opendir("/sys/devices/system/node");
    if (!dir)
        return 0;
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strncmp(entry->d_name, "node", 4) == 0 && isdigit((unsigned char)entry->d_name[4]);
    closedir(dir);
    return count;
}

static void print_machine(void)
{
    struct utsname names;
    if (uname(&names) == 0)
        print_fact("kernel", "%s %s %s", names.sysname, names.release, names.machine);
    char text[LINE_BYTES];
    if (first_line("/etc/debian_version", text, sizeof(text)))
        print_fact("Debian", "%s", text);
    if (proc_value("/proc/cpuinfo", "model name", text, sizeof(text)))
        print_fact("CPU", "%s", text);
    print_flags();
    print_fact("cores online", "%ld of %ld", sysconf(_SC_NPROCESSORS_ONLN),
               sysconf(_SC_NPROCESSORS_CONF));
    if (proc_value("/proc/self/status", "Cpus_allowed_list", text, sizeof(text)))
        print_fact("cores allowed", "%s", text);
    print_fact("NUMA nodes", "%d", count_numa_nodes());
    if (proc_value("/proc/meminfo", "MemTotal", text, sizeof(text)))
        print_fact("memory", "%s", text);
    if (proc_value("/proc/meminfo", "MemAvailable", text, sizeof(text)))
        print_fact("memory available", "%s", text);
    if (first_line("/sys/fs/cgroup/memory.max", text, sizeof(text)))
        print_fact("memory limit", "%s", text);
    if (first_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text)))
        print_fact("huge pages", "%s", text);
    if (first_line("/proc/driver/nvidia/version", text, sizeof(text)))
        print_fact("GPU driver", "%s", text);
    else
        print_fact("GPU driver", "none");
}

static void print_libraries(void)
{
    int major = 0, minor = 0, patch = 0;
    print_fact("libevent", "%s", event_get_version());
    zmq_version(&major, &minor, &patch);
    print_fact("ZeroMQ", "%d.%d.%d", major, minor, patch);
    print_fact("msgpack-c", "%s", msgpack_version());
    print_fact("jansson", "%s", jansson_version_str());
    char pcre2[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    print_fact("PCRE2", "%s", pcre2);
    print_fact("libcurl", "%s", curl_version());
}

/** Values of keys, tokens, passwords and secrets are for nobody's eyes. */
static bool is_secret(const char *name, size_t len)
{
    static const char *const words[] = {"KEY", "TOKEN", "PASS", "SECRET"};
    struct str text = {name, len};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (str_find(text, str_from(words[i]), 0) != STR_NOT_FOUND)
            return true;
    }
    return false;
}

static void print_environment(void)
{
    static const char *const prefixes[] = {"VLLM_", "OMP_", "CUDA_", "NCCL_", "HF_"};
    for (char **entry = environ; entry && *entry; entry++) {
        size_t len = strcspn(*entry, "=");
        for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
            if (strncmp(*entry, prefixes[i], strlen(prefixes[i])) == 0)
                printf("%.*s=%s\n", (int)len, *entry,
                       is_secret(*entry, len) ? "***"
                       : (*entry)[len] == '=' ? *entry + len + 1
                                              : "");
        }
    }
}

int collect_env_main(int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "--help") == 0)) {
        puts("usage: vllm collect-env\n\nPrints facts about this machine and build.");
        return 0;
    }
    if (argc > 0) {
        fprintf(stderr,
                "usage: vllm collect-env\nvllm collect-env: error: unrecognized arguments: %s\n",
                argv[0]);
        return 2;
    }
    print_fact("vllm.c", "interface of vLLM %s", VLLM_VERSION);
#ifdef __OPTIMIZE__
    const char *optimised = "optimised";
#else
    const char *optimised = "not optimised";
#endif
#ifdef __clang__
    print_fact("compiler", "clang %s, %s", __clang_version__, optimised);
#else
    print_fact("compiler", "gcc %s, %s", __VERSION__, optimised);
#endif
    print_machine();
    puts("\nLibraries");
    print_libraries();
    puts("\nEnvironment");
    print_environment();
    return 0;
}
