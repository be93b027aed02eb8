// The sub-commands of the vllm program. main.c picks one; each runs to the end of the process.
#pragma once

#include "config/options.h"

/**
 * `vllm serve`: starts the engine and the API servers, watches them, and stops them on a signal.
 * Returns the exit status of the process.
 */
int serve_main(const struct serve_options *options);

/** `vllm chat`: a conversation with a running server. argv[0] is the first word after "chat". */
int chat_main(int argc, char **argv);

/** `vllm complete`: continues typed text on a running server. argv as for chat_main(). */
int complete_main(int argc, char **argv);

/** `vllm collect-env`: prints what a report about this machine and build should contain. */
int collect_env_main(int argc, char **argv);

/** `vllm replay`: compares a recording's decisions with the scheduler's. argv as for chat_main().
 */
int replay_main(int argc, char **argv);

/** `vllm plan`: prints the memory plan of a model. argv as for chat_main(). Returns 0 if it fits.
 */
int plan_main(int argc, char **argv);
