#include "benchmarks/progress.h"

#include <stdio.h>

enum { BAR_WIDTH = 30 };

static void print_time(double seconds)
{
    int64_t s = (int64_t)seconds;
    if (s >= 3600)
        fprintf(stderr, "%d:", (int)(s / 3600));
    fprintf(stderr, "%02d:%02d", (int)(s / 60 % 60), (int)(s % 60));
}

void progress_show(int64_t num_done, int64_t num_total, double elapsed_s)
{
    double share = num_total > 0 ? (double)num_done / (double)num_total : 1;
    double rate = elapsed_s > 0 ? (double)num_done / elapsed_s : 0;
    fprintf(stderr, "\r%3d%%|", (int)(share * 100));
    for (int i = 0; i < BAR_WIDTH; i++)
        fputs(i < (int)(share * BAR_WIDTH) ? "█" : " ", stderr);
    fprintf(stderr, "| %lld/%lld [", (long long)num_done, (long long)num_total);
    print_time(elapsed_s);
    fputc('<', stderr);
    if (rate > 0)
        print_time((double)(num_total - num_done) / rate);
    else
        fputc('?', stderr);
    fprintf(stderr, ", %.2freq/s]  ", rate);
    fflush(stderr);
}

void progress_end(int64_t num_done, int64_t num_total, double elapsed_s)
{
    progress_show(num_done, num_total, elapsed_s);
    fputc('\n', stderr);
}
