// POST /tokenize and /detokenize: the model's own tokenizer and template, without the engine. Long
// bodies are worked on by the pool.
#include <string.h>

#include "api_server/chat_render.h"
#include "api_server/generation.h"
#include "api_server/json_body.h"
#include "api_server/serving.h"
#include "base/memory.h"

enum { INLINE_BODY_BYTES = 16 * 1024 };

/** Lives until its answer is made; the call may be gone before. */
struct tokenize_job {
    struct pool_job job; // first
    const struct api_server *server;
    struct api_call *call; // NULL: the client has left
    enum status (*work)(struct tokenize_job *job, const json_t *body);
    struct str body;
    struct arena arena;
    struct buf answer;
    enum status status;
    struct api_error error;
};

/** The part of a tokenize request that is a chat. */
static enum status read_chat(struct chat_request *r, const json_t *body,
                             const struct protocol_config *config, struct api_error *err)
{
    *r = (struct chat_request){0};
    TRY(json_field_array(body, "messages", &r->messages, err));
    TRY(json_field_array(body, "tools", &r->tools, err));
    return template_fields_parse(r, body, true, config, err);
}

static void write_tokens(struct tokenize_job *job, const int32_t *ids, int32_t num_ids,
                         bool with_strings)
{
    struct buf *out = &job->answer;
    buf_append_c(out, "{\"count\":");
    buf_append_int(out, num_ids);
    buf_append_c(out, ",\"max_model_len\":");
    buf_append_int(out, api_server_max_model_len(job->server));
    buf_append_c(out, ",\"tokens\":");
    answer_write_ids(out, ids, num_ids);
    buf_append_c(out, ",\"token_strs\":");
    if (!with_strings) {
        buf_append_c(out, "null}");
        return;
    }
    buf_append_char(out, '[');
    for (int32_t i = 0; i < num_ids; i++) {
        if (i > 0)
            buf_append_char(out, ',');
        buf_append_json_string(out, tokenizer_id_to_token(job->server->facts.tokenizer, ids[i]));
    }
    buf_append_c(out, "]}");
}

static enum status tokenize(struct tokenize_job *job, const json_t *body)
{
    struct api_error *err = &job->error;
    struct str model, text;
    bool is_chat = json_field_get(body, "messages").value != NULL;
    bool add_special = !is_chat, with_strings = false;
    struct chat_request chat;
    TRY(json_field_str(body, "model", &model, err));
    TRY(json_field_bool(body, "add_special_tokens", &add_special, NULL, err));
    TRY(json_field_bool(body, "return_token_strs", &with_strings, NULL, err));
    if (is_chat)
        TRY(read_chat(&chat, body, &job->server->facts.protocol, err));
    else
        TRY(json_field_str(body, "prompt", &text, err));
    if (!is_chat && !text.ptr) {
        char input[160];
        json_summary(body, input, sizeof(input));
        return api_error_schema(err, "missing", "body.prompt", input, "Field required");
    }
    TRY(api_server_check_model(job->server, model, err));
    if (is_chat)
        TRY(chat_render(job->server, &chat, &job->arena, &text, NULL, NULL, err));
    int32_t num_ids;
    const int32_t *ids =
        tokenizer_encode(job->server->facts.tokenizer, text, add_special, &job->arena, &num_ids);
    write_tokens(job, ids, num_ids, with_strings);
    return STATUS_OK;
}

static enum status detokenize(struct tokenize_job *job, const json_t *body)
{
    struct api_error *err = &job->error;
    struct str model;
    const json_t *tokens;
    TRY(json_field_str(body, "model", &model, err));
    TRY(json_field_array(body, "tokens", &tokens, err));
    if (!tokens) {
        char input[160];
        json_summary(body, input, sizeof(input));
        return api_error_schema(err, "missing", "body.tokens", input, "Field required");
    }
    int32_t *ids, num_ids;
    TRY(token_ids_parse(tokens, "body.tokens", &ids, &num_ids, &job->arena, err));
    TRY(api_server_check_model(job->server, model, err));
    struct str text =
        tokenizer_decode(job->server->facts.tokenizer, ids, num_ids, false, &job->arena);
    buf_append_c(&job->answer, "{\"prompt\":");
    buf_append_json_string(&job->answer, text);
    buf_append_char(&job->answer, '}');
    return STATUS_OK;
}

static void work(struct tokenize_job *job)
{
    json_t *body;
    job->status = json_body_parse(&body, job->body, &job->error);
    if (job->status == STATUS_OK)
        job->status = body_require_object(body, &job->error);
    if (job->status == STATUS_OK)
        job->status = job->work(job, body);
    json_decref(body);
}

static void answer(struct tokenize_job *job)
{
    if (job->call && job->status == STATUS_OK)
        api_call_reply_json(job->call, buf_str(&job->answer));
    else if (job->call)
        api_call_fail(job->call, &job->error);
    buf_deinit(&job->answer);
    arena_deinit(&job->arena);
    free(job);
}

static void run_job(struct pool_job *job)
{
    work((struct tokenize_job *)job);
}

static void job_done(struct pool_job *job)
{
    answer((struct tokenize_job *)job);
}

static void on_client_gone(void *context)
{
    struct tokenize_job *job = context;
    job->call = NULL; // the pool holds the job; its end frees it
}

static void begin(struct api_call *call,
                  enum status (*fn)(struct tokenize_job *job, const json_t *body))
{
    struct tokenize_job *job = xcalloc(1, sizeof(*job));
    job->server = call->server;
    job->call = call;
    job->work = fn;
    job->body = api_call_body(call);
    if (job->body.len <= INLINE_BODY_BYTES) {
        work(job);
        answer(job);
        return;
    }
    job->body = arena_str(&job->arena, job->body);
    job->job = (struct pool_job){.run = run_job, .done = job_done};
    api_call_on_close(call, on_client_gone, job);
    if (tokenizer_pool_post(call->server->pool, &job->job))
        return;
    job->status = api_error_set(&job->error, API_ERROR_OVERLOADED,
                                "Too many long texts wait. Please try again later.");
    answer(job);
}

void serving_tokenize(struct api_call *call)
{
    begin(call, tokenize);
}

void serving_detokenize(struct api_call *call)
{
    begin(call, detokenize);
}
