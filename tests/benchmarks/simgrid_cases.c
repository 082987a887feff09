/* Five small MPI programs for SimGrid's SMPI, the same as those in emulated_simgrid.py. Prints their seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 4000000 /* bytes of an array */

static char *array, *spare;
static int rank, size;

static void ring(void)
{
    int right = (rank + 1) % size, left = (rank + size - 1) % size, part = N / size;
    for (int step = 0; step < 2 * (size - 1); step++)
        MPI_Sendrecv(array, part, MPI_BYTE, right, 0, spare, part, MPI_BYTE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void tree(void)
{
    for (int far = size / 2; far >= 1; far /= 2) {
        if (rank % (2 * far) == 0)
            MPI_Send(array, N, MPI_BYTE, rank + far, 0, MPI_COMM_WORLD);
        else if (rank % (2 * far) == far)
            MPI_Recv(array, N, MPI_BYTE, rank - far, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static void late(void)
{
    if (rank == size - 1)
        usleep(50000);
    ring();
}

/* Rank 0 sends N bytes to rank 1 and a quarter of that to rank 2 at once, and computes meanwhile. */
static void overlapping(void)
{
    MPI_Request both[2];
    if (rank == 0) {
        MPI_Isend(array, N, MPI_BYTE, 1, 0, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(spare, N / 4, MPI_BYTE, 2, 0, MPI_COMM_WORLD, &both[1]);
        usleep(1000);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    } else if (rank <= 2) {
        MPI_Recv(array, rank == 1 ? N : N / 4, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    array = calloc(1, N);
    spare = calloc(1, N);
    double began = MPI_Wtime(), taken, all[64];
    if (!strcmp(argv[1], "ring"))
        ring();
    else if (!strcmp(argv[1], "tree"))
        tree();
    else if (!strcmp(argv[1], "late"))
        late();
    else
        overlapping();
    taken = MPI_Wtime() - began;
    MPI_Gather(&taken, 1, MPI_DOUBLE, all, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int each = 0; rank == 0 && each < size; each++)
        printf("%.9f\n", all[each]);
    MPI_Finalize();
    return 0;
}
