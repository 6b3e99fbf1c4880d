// Each rank sends 4 MiB to the next one. Rank 0 prints the number of ranks, and each rank its host.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  const int bytes = 4 << 20;
  int rank, size, length;
  char node[MPI_MAX_PROCESSOR_NAME];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_processor_name(node, &length);
  char* out = calloc(bytes, 1);
  char* in = malloc(bytes);
  MPI_Sendrecv(out, bytes, MPI_BYTE, (rank + 1) % size, 0, in, bytes, MPI_BYTE, (rank + size - 1) % size, 0,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  printf("rank %d of %d on %s\n", rank, size, node);
  free(in);
  free(out);
  return MPI_Finalize();
}
