#include "benchmarks/request_body.h"

#include <jansson.h>
#include <string.h>

#include "base/memory.h"

/** Numbers stand in the request as they were written; they were checked. */
static void add_number(json_t *root, const char *key, const char *text)
{
    if (!text)
        return;
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    json_object_set_new(root, key, value ? value : json_real(strtod(text, NULL)));
}

/** Inputs beyond the model's length are cut by the server, so that none is refused. */
static json_t *make_embeddings_common(const char *model)
{
    return json_pack("{s:s, s:i}", "model", model, "truncate_prompt_tokens", -1);
}

static json_t *make_generation_common(const struct bench_options *o, const char *model)
{
    json_t *root = json_pack("{s:s, s:b, s:{s:b}}", "model", model, "stream", 1, "stream_options",
                             "include_usage", 1);
    if (!root)
        return NULL;
    add_number(root, "temperature", o->temperature);
    add_number(root, "top_p", o->top_p);
    add_number(root, "top_k", o->top_k);
    add_number(root, "min_p", o->min_p);
    add_number(root, "frequency_penalty", o->frequency_penalty);
    add_number(root, "presence_penalty", o->presence_penalty);
    add_number(root, "repetition_penalty", o->repetition_penalty);
    if (o->ignore_eos)
        json_object_set_new(root, "ignore_eos", json_true());
    bool is_chat = o->backend == BENCH_BACKEND_CHAT;
    if (o->logprobs >= 0 && is_chat)
        json_object_set_new(root, "logprobs", json_true());
    if (o->logprobs >= 0)
        json_object_set_new(root, is_chat ? "top_logprobs" : "logprobs", json_integer(o->logprobs));
    return root;
}

static json_t *make_common(const struct bench_options *o, const char *model)
{
    json_t *root = o->backend == BENCH_BACKEND_EMBEDDINGS ? make_embeddings_common(model)
                                                          : make_generation_common(o, model);
    json_t *extra = root && o->extra_body ? json_loads(o->extra_body, 0, NULL) : NULL;
    if (extra)
        json_object_update(root, extra);
    json_decref(extra);
    return root;
}

enum status request_body_init(struct request_body *body, const struct bench_options *o,
                              const struct target *target, const char *model, const char *id_prefix,
                              struct error *err)
{
    *body = (struct request_body){.backend = o->backend, .id_prefix = id_prefix};
    json_t *root = make_common(o, model);
    if (!root)
        return error_set(err, STATUS_INVALID, "the model's name is not valid UTF-8");
    bool is_chat = o->backend == BENCH_BACKEND_CHAT;
    bool is_embedding = o->backend == BENCH_BACKEND_EMBEDDINGS;
    body->has_own_len = is_embedding || json_object_get(root, "max_tokens") ||
                        (is_chat && json_object_get(root, "max_completion_tokens"));
    json_object_del(root, is_chat        ? "messages" // these are the benchmark's own
                          : is_embedding ? "input"
                                         : "prompt");
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (!text)
        return error_set(err, STATUS_INTERNAL, "the request cannot be written as JSON");
    size_t len = strlen(text);
    body->common = xstrndup(text + 1, len - 2);
    free(text);
    struct buf head = {0};
    buf_printf(&head, "POST %s%s HTTP/1.1\r\n", target->prefix, o->endpoint);
    buf_append(&head, buf_str(&target->headers));
    buf_printf(&head, "Content-Type: application/json\r\nAccept: %s\r\n",
               is_embedding ? "application/json" : "text/event-stream");
    body->head = xstrndup(head.ptr, head.len);
    buf_deinit(&head);
    return STATUS_OK;
}

void request_body_deinit(struct request_body *body)
{
    free(body->head);
    free(body->common);
    *body = (struct request_body){0};
}

static void append_batch(struct buf *json, const struct bench_prompt *prompt)
{
    for (int32_t i = 0; i < prompt->num_batch; i++) {
        buf_append_char(json, i == 0 ? '[' : ',');
        buf_append_json_string(json, prompt->batch[i]);
    }
    buf_append_char(json, ']');
}

void request_body_write(const struct request_body *body, const struct bench_prompt *prompt,
                        int32_t index, struct buf *json, struct buf *out)
{
    bool is_chat = body->backend == BENCH_BACKEND_CHAT;
    buf_clear(json);
    buf_append_char(json, '{');
    if (!body->has_own_len)
        buf_printf(json, "\"%s\":%d,", is_chat ? "max_completion_tokens" : "max_tokens",
                   prompt->output_len);
    buf_append(json, str_from(body->common));
    buf_append_c(json, is_chat ? ",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                                 "\"text\",\"text\":"
                       : body->backend == BENCH_BACKEND_EMBEDDINGS ? ",\"input\":"
                                                                   : ",\"prompt\":");
    if (prompt->batch)
        append_batch(json, prompt);
    else
        buf_append_json_string(json, prompt->text);
    buf_append_c(json, is_chat ? "}]}]}" : "}");

    buf_clear(out);
    buf_append(out, str_from(body->head));
    buf_printf(out, "X-Request-Id: %s%d\r\nContent-Length: %zu\r\n\r\n", body->id_prefix, index,
               json->len);
    buf_append(out, buf_str(json));
}
