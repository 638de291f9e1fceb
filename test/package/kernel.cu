// A kernel of the user's own, compiled for the GPUs of the user's choice.
__global__ void scale(float* values, float factor, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) {
    values[index] *= factor;
  }
}
