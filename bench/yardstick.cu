/* The same loop as yardstick.c by hand for a GPU: a seed a thread, its state in registers. */
#define D 10
typedef unsigned int word;
typedef unsigned long long word64;

__device__ __forceinline__ void threefry(word a, word b, word &x, word &y) {
  word c = a ^ b ^ 0x1BD11BDAu;
  x += a; y += b;
#define ROUND(r) x += y; y = ((y << r) | (y >> (32 - r))) ^ x;
#define EVEN ROUND(13) ROUND(15) ROUND(26) ROUND(6)
#define ODD ROUND(17) ROUND(29) ROUND(16) ROUND(24)
  EVEN x += b; y += c + 1u; ODD x += c; y += a + 2u; EVEN x += a; y += b + 3u; ODD x += b; y += c + 4u; EVEN x += c; y += a + 5u;
}
__device__ __forceinline__ double uniform(word a, word b, word n) {
  word x = 0, y = n;
  threefry(a, b, x, y);
  return __longlong_as_double((long long)(((((word64)x << 32) | y) >> 12) | 0x3FF0000000000000ull)) - 1.0;
}
extern "C" __global__ void run(int steps, int seeds, int S, int A, const double *__restrict__ keep,
                               const int *__restrict__ other, const double *__restrict__ next_keep,
                               const int *__restrict__ next_other, const double *__restrict__ ratio,
                               const double *__restrict__ reward, const double *__restrict__ Phi,
                               const word *__restrict__ streams, double alpha, double beta, double c, double shift,
                               double gamma, double *theta) {
  int seed = blockIdx.x * blockDim.x + threadIdx.x;
  if (seed >= seeds) return;
  word s0 = streams[2 * seed], s1 = streams[2 * seed + 1];
  double t[D], o[D], f[D], g[D];
#pragma unroll
  for (int d = 0; d < D; d++) t[d] = o[d] = f[d] = g[d] = 0;
  for (int k = 0; k < steps; k++) {
    word k0 = 0, k1 = k;
    threefry(s0, s1, k0, k1);
    double at = uniform(k0, k1, 0) * S;
    int j = (int)at, s = at - j < keep[j] ? j : other[j];
    int pair = s * A + (int)(uniform(k0, k1, 1) * A);
    at = uniform(k0, k1, 2) * S;
    j = (int)at;
    int e = pair * S + j, next = at - j < next_keep[e] ? j : next_other[e];
    double rho = ratio[pair], delta = reward[s], along = 0, now[D], then[D];
#pragma unroll
    for (int d = 0; d < D; d++) {
      now[d] = Phi[s * D + d];
      then[d] = gamma * Phi[next * D + d];
      delta += (then[d] - now[d]) * t[d];
      along += now[d] * o[d];
    }
    double lambda = c / (k + shift);
#pragma unroll
    for (int d = 0; d < D; d++) {
      double F = 2 * rho * (then[d] * along - delta * now[d]), G = now[d] * (along - rho * delta);
      t[d] -= alpha * f[d];
      o[d] -= beta * g[d];
      f[d] += lambda * (F - f[d]);
      g[d] += lambda * (G - g[d]);
    }
  }
#pragma unroll
  for (int d = 0; d < D; d++) theta[seed * D + d] = t[d];
}
