// Routes of other servers of this kind that are not here: a client that asks for one is told so by
// name, unless such a server would not have it either.
#pragma once

#include "api_server/api_error.h"
#include "api_server/server.h"
#include "base/str.h"

/** Says that `path` is not there, or not yet. */
void missing_routes_explain(const struct api_server *server, struct str path,
                            struct api_error *err);
