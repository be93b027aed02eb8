// `vllm chat` and `vllm complete`: lines from the keyboard to a running server, answers as they
// come.
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "entrypoints/entrypoints.h"
#include "entrypoints/sse_client.h"

enum { EXIT_USAGE = 2 };

struct cli_options {
    const char *command; // "chat", "complete"
    const char *url, *model_name, *api_key, *system_prompt, *quick;
    int64_t max_tokens; // -1: the server's default
};

static void print_help(FILE *out, bool is_chat)
{
    fprintf(out,
            "usage: vllm %s [options]\n\n"
            "  --url URL             the server (default: http://localhost:8000/v1)\n"
            "  --model-name NAME     the model (default: the first the server names)\n"
            "  --api-key KEY         its key (default: OPENAI_API_KEY)\n",
            is_chat ? "chat" : "complete");
    if (is_chat)
        fputs("  --system-prompt TEXT  instructions in front of the conversation\n"
              "  -q, --quick TEXT      ask one question, print the answer and end\n\n"
              "Ctrl-D or /exit ends the conversation.\n",
              out);
    else
        fputs("  --max-tokens N        most tokens of an answer\n"
              "  -q, --quick TEXT      continue one text, print the answer and end\n\n"
              "Ctrl-D or /exit ends.\n",
              out);
}

static int usage_error(const struct cli_options *options, const char *what, const char *word)
{
    fprintf(stderr, "usage: vllm %s [options]\nvllm %s: error: %s%s\n", options->command,
            options->command, what, word);
    return EXIT_USAGE;
}

/** -1: run; otherwise the exit status. */
static int parse_options(struct cli_options *options, bool is_chat, int argc, char **argv)
{
    const struct {
        const char *name, *alias;
        const char **out;
        bool chat, complete;
    } rows[] = {
        {"--url", "--url", &options->url, true, true},
        {"--model-name", "--model-name", &options->model_name, true, true},
        {"--api-key", "--api-key", &options->api_key, true, true},
        {"--system-prompt", "--system-prompt", &options->system_prompt, true, false},
        {"--max-tokens", "--max-tokens", NULL, false, true},
        {"--quick", "-q", &options->quick, true, true},
    };
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            print_help(stdout, is_chat);
            return 0;
        }
        size_t len = strcspn(argv[i], "="), found = 0;
        char name[32];
        snprintf(name, sizeof(name), "%.*s", (int)len, argv[i]);
        for (char *p = name; *p; p++)
            *p = *p == '_' ? '-' : *p;
        while (found < ARRAY_LEN(rows) &&
               ((strcmp(name, rows[found].name) != 0 && strcmp(name, rows[found].alias) != 0) ||
                !(is_chat ? rows[found].chat : rows[found].complete)))
            found++;
        if (found == ARRAY_LEN(rows))
            return usage_error(options, "unrecognized arguments: ", argv[i]);
        bool has_value = argv[i][len] == '=';
        if (!has_value && i + 1 == argc)
            return usage_error(options, "expected one argument after ", argv[i]);
        const char *value = has_value ? argv[i] + len + 1 : argv[++i];
        if (rows[found].out)
            *rows[found].out = value;
        else if (human_int_parse(str_from(value), &options->max_tokens, NULL) != STATUS_OK ||
                 options->max_tokens < 1)
            return usage_error(options, "argument --max-tokens: invalid int value: ", value);
    }
    return -1;
}

/** The first model that the server names; the caller frees it. */
static enum status find_model(struct sse_client *client, char **out, struct error *err)
{
    struct buf body = {0};
    enum status status = sse_client_get(client, "/models", &body, err);
    json_t *root = NULL;
    if (status == STATUS_OK) {
        root = json_loadb(body.ptr ? body.ptr : "", body.len, 0, NULL);
        const json_t *first = json_array_get(json_object_get(root, "data"), 0);
        const char *id = json_string_value(json_object_get(first, "id"));
        if (id)
            *out = xstrdup(id);
        else
            status = error_set(err, STATUS_INVALID, "the server names no model at /models");
    }
    json_decref(root);
    buf_deinit(&body);
    return status;
}

static enum status print_piece(struct buf *answer, const json_t *piece)
{
    const char *text = json_string_value(piece);
    if (!text)
        return STATUS_OK;
    fputs(text, stdout);
    fflush(stdout);
    if (answer)
        buf_append_c(answer, text);
    return STATUS_OK;
}

/** A chunk of either kind of answer: choices[0].delta.content or choices[0].text. */
static enum status on_chunk(void *context, struct str data, struct error *err)
{
    struct buf *answer = context;
    json_t *root = json_loadb(data.ptr, data.len, 0, NULL);
    if (!root)
        return error_set(err, STATUS_INVALID, "the server sends an event that is not JSON");
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    print_piece(NULL, json_object_get(delta, "reasoning")); // seen, but no part of the history
    print_piece(answer, json_object_get(delta, "content"));
    print_piece(answer, json_object_get(choice, "text"));
    json_decref(root);
    return STATUS_OK;
}

/** Sends `body` (which it releases) and prints the answer, which it appends to `answer`. */
static enum status send_request(struct sse_client *client, const char *path, json_t *body,
                                struct buf *answer, struct error *err)
{
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!text)
        return error_set(err, STATUS_INVALID, "the text is not valid UTF-8");
    enum status status = sse_client_post(client, path, str_from(text), on_chunk, answer, err);
    free(text);
    putchar('\n');
    return status;
}

static enum status add_message(json_t *messages, const char *role, struct str content,
                               struct error *err)
{
    json_t *text = json_stringn(content.ptr ? content.ptr : "", content.len);
    if (!text)
        return error_set(err, STATUS_INVALID, "the text is not valid UTF-8");
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", text));
    return STATUS_OK;
}

static enum status chat_turn(struct sse_client *client, const char *model, json_t *messages,
                             struct str question, struct error *err)
{
    TRY(add_message(messages, "user", question, err));
    struct buf answer = {0};
    json_t *body = json_pack("{s:s, s:O, s:b}", "model", model, "messages", messages, "stream", 1);
    enum status status = send_request(client, "/chat/completions", body, &answer, err);
    if (status == STATUS_OK)
        status = add_message(messages, "assistant", buf_str(&answer), err);
    buf_deinit(&answer);
    return status;
}

static enum status complete_turn(struct sse_client *client, const char *model, struct str prompt,
                                 int64_t max_tokens, struct error *err)
{
    json_t *text = json_stringn(prompt.ptr, prompt.len);
    if (!text)
        return error_set(err, STATUS_INVALID, "the text is not valid UTF-8");
    json_t *body = json_pack("{s:s, s:o, s:b}", "model", model, "prompt", text, "stream", 1);
    if (max_tokens > 0)
        json_object_set_new(body, "max_tokens", json_integer(max_tokens));
    struct buf answer = {0};
    enum status status = send_request(client, "/completions", body, &answer, err);
    buf_deinit(&answer);
    return status;
}

static enum status one_turn(const struct cli_options *options, struct sse_client *client,
                            const char *model, json_t *messages, struct str text, struct error *err)
{
    return messages ? chat_turn(client, model, messages, text, err)
                    : complete_turn(client, model, text, options->max_tokens, err);
}

/** Lines until the end of the input or /exit. */
static enum status converse(const struct cli_options *options, struct sse_client *client,
                            const char *model, json_t *messages, struct error *err)
{
    bool is_terminal = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t capacity = 0;
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        if (is_terminal) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        ssize_t len = getline(&line, &capacity, stdin);
        if (len < 0)
            break;
        struct str text = str_trim((struct str){line, (size_t)len});
        if (str_eq(text, STR("/exit")))
            break;
        if (text.len > 0)
            status = one_turn(options, client, model, messages, text, err);
    }
    free(line);
    return status;
}

static enum status run(const struct cli_options *options, json_t *messages, struct error *err)
{
    struct sse_client *client = NULL;
    TRY(sse_client_create(&client, options->url, options->api_key, err));
    char *model = options->model_name ? xstrdup(options->model_name) : NULL;
    enum status status = model ? STATUS_OK : find_model(client, &model, err);
    if (status == STATUS_OK && messages && options->system_prompt)
        status = add_message(messages, "system", str_from(options->system_prompt), err);
    if (status == STATUS_OK && options->quick)
        status = one_turn(options, client, model, messages, str_from(options->quick), err);
    else if (status == STATUS_OK) {
        fprintf(stderr, "Using model: %s\n", model);
        status = converse(options, client, model, messages, err);
    }
    free(model);
    sse_client_destroy(client);
    return status;
}

static int client_main(bool is_chat, int argc, char **argv)
{
    struct cli_options options = {
        .command = is_chat ? "chat" : "complete",
        .url = "http://localhost:8000/v1",
        .api_key = options_env("OPENAI_API_KEY"),
        .max_tokens = -1,
    };
    int exit_status = parse_options(&options, is_chat, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    json_t *messages = is_chat ? json_array() : NULL;
    struct error err = {0};
    enum status status = run(&options, messages, &err);
    json_decref(messages);
    if (status == STATUS_OK)
        return 0;
    fprintf(stderr, "vllm %s: error: %s\n", options.command, err.message);
    return 1;
}

int chat_main(int argc, char **argv)
{
    return client_main(true, argc, argv);
}

int complete_main(int argc, char **argv)
{
    return client_main(false, argc, argv);
}
