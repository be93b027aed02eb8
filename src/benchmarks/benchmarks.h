// `vllm bench`: load on a server or an engine, and what came of it in numbers.
#pragma once

/**
 * Runs `vllm bench SUB-COMMAND`; argv[0] is the first word after "bench". Returns the exit status:
 * 0 when at least one request succeeded, 1 when none did or the run could not begin, 2 after a
 * usage error.
 */
int bench_main(int argc, char **argv);
