// POST /v1/embeddings: a vector for each input. An input is a choice of a generation that draws
// nothing.
#include <string.h>

#include "api_server/chat_render.h"
#include "api_server/generation.h"
#include "api_server/serving.h"
#include "base/dtype.h"

static enum status parse(struct generation *g, struct api_error *err)
{
    struct embedding_request *r = &g->embedding;
    const struct model_facts *facts = &g->server->facts;
    g->fields = &r->chat.common;
    TRY(embedding_request_parse(r, g->json, &facts->protocol, facts->config.hidden_size,
                                g->server->options->served_model_names.items[0], &g->arena, err));
    g->pooling = r->pooling;
    return STATUS_OK;
}

static enum status make_prompts(struct generation *g, struct api_error *err)
{
    const struct embedding_request *r = &g->embedding;
    g->num_prompts = r->chat.messages ? 1 : r->num_prompts;
    g->prompts = arena_calloc(&g->arena, (size_t)g->num_prompts, sizeof(*g->prompts));
    if (r->chat.messages)
        return chat_render(g->server, &r->chat, &g->arena, &g->prompts[0].text, NULL, NULL, err);
    for (int32_t i = 0; i < g->num_prompts; i++) {
        g->prompts[i].text = r->prompts[i].text;
        g->prompts[i].ids = r->prompts[i].ids;
        g->prompts[i].num_ids = r->prompts[i].num_ids;
    }
    return STATUS_OK;
}

/** As many digits as tell every float32 from its neighbours. */
static void write_numbers(struct buf *out, const struct choice *c)
{
    buf_append_char(out, '[');
    for (int32_t i = 0; i < c->num_pooled; i++)
        buf_printf(out, i > 0 ? ",%.9g" : "%.9g", (double)c->pooled[i]);
    buf_append_char(out, ']');
}

/** The elements one after the other, in the dtype and byte order that were asked for. */
static struct str make_bytes(const struct choice *c, const struct embedding_format *format,
                             struct arena *arena)
{
    const size_t size = dtype_size(format->dtype);
    const struct str bytes = {arena_alloc(arena, (size_t)c->num_pooled * size),
                              (size_t)c->num_pooled * size};
    char *to = (char *)(uintptr_t)bytes.ptr; // just made
    for (int32_t i = 0; i < c->num_pooled; i++) {
        uint32_t bits;
        if (format->dtype == DTYPE_F32)
            memcpy(&bits, &c->pooled[i], sizeof(bits));
        else
            bits =
                format->dtype == DTYPE_F16 ? f32_to_f16(c->pooled[i]) : f32_to_bf16(c->pooled[i]);
        for (size_t k = 0; k < size; k++) {
            size_t place = format->is_big_endian ? size - 1 - k : k;
            *to++ = (char)(bits >> 8 * place & 0xFF);
        }
    }
    return bytes;
}

static void write_embedding(struct buf *out, const struct choice *c)
{
    struct generation *g = c->generation;
    buf_append_c(out, "{\"index\":");
    buf_append_int(out, c->index);
    buf_append_c(out, ",\"object\":\"embedding\",\"embedding\":");
    if (g->embedding.format.is_base64) {
        struct arena *arena = &g->server->scratch_arena;
        struct arena_mark mark = arena_mark(arena);
        buf_append_char(out, '"');
        buf_append_base64(out, make_bytes(c, &g->embedding.format, arena));
        buf_append_char(out, '"');
        arena_release(arena, mark);
    } else {
        write_numbers(out, c);
    }
    buf_append_char(out, '}');
}

static void write_answer(struct generation *g, struct buf *out)
{
    buf_append_c(out, "{\"id\":");
    buf_append_json_string(out, str_from(g->id));
    buf_append_c(out, ",\"object\":\"list\",\"created\":");
    buf_append_int(out, g->created);
    buf_append_c(out, ",\"model\":");
    buf_append_json_string(out, str_from(g->model));
    buf_append_c(out, ",\"data\":[");
    for (int32_t i = 0; i < g->num_choices; i++) {
        if (i > 0)
            buf_append_char(out, ',');
        write_embedding(out, &g->choices[i]);
    }
    buf_append_c(out, "],\"usage\":");
    answer_write_usage(out, g, NULL, true);
    buf_append_char(out, '}');
}

static const struct generation_kind embedding_kind = {
    .id_prefix = "embd-",
    .pools = true,
    .parse = parse,
    .make_prompts = make_prompts,
    .write_answer = write_answer,
};

void serving_embedding(struct api_call *call)
{
    generation_begin(call, &embedding_kind);
}
