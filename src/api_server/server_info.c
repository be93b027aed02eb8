// GET /server_info: how this server was started, and on what machine.
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "api_server/serving.h"

static void write_member(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, "\"%s\":", key);
    buf_append_json_string(out, str_from(value));
    buf_append_char(out, ',');
}

static void write_system(struct buf *out)
{
    struct utsname name;
    buf_append_char(out, '{');
    if (uname(&name) == 0) {
        write_member(out, "os", name.sysname);
        write_member(out, "os_release", name.release);
        write_member(out, "machine", name.machine);
    }
    write_member(out, "libc_version", gnu_get_libc_version());
    write_member(out, "compiler", __VERSION__);
    write_member(out, "vllm_version", VLLM_VERSION);
    long pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGESIZE);
    buf_printf(out, "\"num_cpus\":%ld,\"memory_bytes\":%lld}", sysconf(_SC_NPROCESSORS_ONLN),
               (long long)pages * page_size);
}

void serving_server_info(struct api_call *call)
{
    const struct serve_options *options = call->server->options;
    struct str query = http_exchange_query(call->exchange), format = STR("text");
    while (query.len > 0) {
        struct str value = str_split(&query, '&');
        struct str key = str_split(&value, '=');
        if (str_eq(key, STR("config_format")))
            format = value;
    }
    if (!str_eq(format, STR("text")) && !str_eq(format, STR("json"))) {
        struct api_error err;
        api_error_schema(&err, "literal_error", "query.config_format", NULL,
                         "Input should be 'text' or 'json'");
        api_call_fail(call, &err);
        return;
    }
    struct buf out = {0}, text = {0};
    buf_append_c(&out, "{\"vllm_config\":");
    if (str_eq(format, STR("json"))) {
        options_write_json(options, &out);
    } else {
        options_non_default(options, &text);
        buf_append_json_string(&out, buf_str(&text));
    }
    buf_append_c(&out, ",\"vllm_env\":");
    options_write_environment_json(&out);
    buf_append_c(&out, ",\"system_env\":");
    write_system(&out);
    buf_append_char(&out, '}');
    api_call_reply_json(call, buf_str(&out));
    buf_deinit(&out);
    buf_deinit(&text);
}
