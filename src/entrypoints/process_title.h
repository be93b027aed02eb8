// What `ps` and `top` show for this process.
#pragma once

/**
 * Names the process: `title` replaces the command line, `thread_name` (at most 15 bytes) is what
 * the kernel calls it. Does nothing where the command line cannot be found. The strings of argv are
 * gone afterwards.
 */
void process_title_set(const char *title, const char *thread_name);
