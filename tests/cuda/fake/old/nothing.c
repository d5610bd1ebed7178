/* A libcuda.so.1 that has none of the calls that are needed: a driver that is too old. */
extern const int fake_cuda_of_old;
__attribute__((visibility("default"))) const int fake_cuda_of_old = 1;
