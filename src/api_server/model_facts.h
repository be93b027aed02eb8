// Loads what requests are checked against and rendered with: tokenizer, template, defaults.
#pragma once

#include "api_server/server.h"

/** Fills `facts` from the options' model. Errors name the file. End with model_facts_deinit(). */
NODISCARD enum status model_facts_load(struct model_facts *facts,
                                       const struct serve_options *options, struct error *err);
void model_facts_deinit(struct model_facts *facts);

/** Logs the sampling defaults in force. */
void model_facts_log(const struct model_facts *facts, const struct serve_options *options);
