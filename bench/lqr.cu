/* The actor-critic on the paper's LQR by hand for a GPU: a seed a thread, its state in registers. Omega and its average
   are symmetric, so their upper triangles are enough. */
#define N 3
#define M 2
#define Z (N + M)
#define HALF (Z * (Z + 1) / 2)
#define ROW (2 * (M * N + 1 + Z * Z) + Z)
typedef unsigned int word;
typedef unsigned long long word64;

__constant__ struct {
  double A[N][N], B[N][M], Q[N][N], R[M][M], sigma, kappa, alpha, beta, lambda, shift;
} given;

struct Lane {
  double K[M][N], J, Omega[HALF], f[M][N], g_J, g[HALF], z[Z];
};

__device__ __forceinline__ void threefry(word a, word b, word &x, word &y) {
  word c = a ^ b ^ 0x1BD11BDAu;
  x += a; y += b;
#define ROUND(r) x += y; y = __funnelshift_l(y, y, r) ^ x;
#define EVEN ROUND(13) ROUND(15) ROUND(26) ROUND(6)
#define ODD ROUND(17) ROUND(29) ROUND(16) ROUND(24)
  EVEN x += b; y += c + 1u; ODD x += c; y += a + 2u; EVEN x += a; y += b + 3u; ODD x += b; y += c + 4u; EVEN x += c; y += a + 5u;
}

/* The noise of step k: five normal numbers. */
__device__ __forceinline__ void normals(word s0, word s1, int k, double *u) {
  word k0 = 0, k1 = k;
  threefry(s0, s1, k0, k1);
#pragma unroll
  for (int i = 0; i < Z; i++) {
    word x = 0, y = i;
    threefry(k0, k1, x, y);
    double v = __longlong_as_double((long long)(((((word64)x << 32) | y) >> 12) | 0x3FF0000000000000ull)) - 1.0;
    v = 2 * v - (1 - 0x1p-53);
    u[i] = 1.4142135623730951 * erfinv(v);
  }
}

/* Where entry (i, j) of a symmetric matrix is kept. */
__device__ __forceinline__ int at(int i, int j) {
  int row = min(i, j), column = max(i, j);
  return row * Z - row * (row + 1) / 2 + column;
}

__device__ __forceinline__ void step(Lane &s, int k, const double *u) {
  double next[Z], cost = 0, F[M][N], over = 1 / (k + given.shift);
#pragma unroll
  for (int i = 0; i < N; i++) {
    double Qx = 0;
    next[i] = u[i];
#pragma unroll
    for (int j = 0; j < N; j++) next[i] += given.A[i][j] * s.z[j], Qx += given.Q[i][j] * s.z[j];
#pragma unroll
    for (int j = 0; j < M; j++) next[i] += given.B[i][j] * s.z[N + j];
    cost += Qx * s.z[i];
  }
#pragma unroll
  for (int i = 0; i < M; i++) {
    double Ru = 0;
    next[N + i] = given.sigma * u[N + i];
#pragma unroll
    for (int j = 0; j < N; j++) next[N + i] -= s.K[i][j] * next[j];
#pragma unroll
    for (int j = 0; j < M; j++) Ru += given.R[i][j] * s.z[N + j];
    cost += Ru * s.z[N + i];
  }
  double alpha = given.alpha * over, beta = given.beta * over, lambda = given.lambda * over, keep = 1 - lambda;
  double excess = s.J - cost, delta = excess, zz[HALF];
#pragma unroll
  for (int i = 0; i < Z; i++) {
    double row = 0;
#pragma unroll
    for (int j = i; j < Z; j++) {
      zz[at(i, j)] = s.z[i] * s.z[j];
      double term = s.Omega[at(i, j)] * (zz[at(i, j)] - next[i] * next[j]);
      row += i == j ? 0.5 * term : term;
    }
    delta += 2 * row;
  }
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int j = 0; j < N; j++) {
      F[i][j] = -s.Omega[at(N + i, j)];
#pragma unroll
      for (int l = 0; l < M; l++) F[i][j] += s.Omega[at(N + i, N + l)] * s.K[l][j];
    }
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int j = 0; j < N; j++) {
      s.K[i][j] -= alpha * s.f[i][j];
      s.f[i][j] = keep * s.f[i][j] + lambda * F[i][j];
    }
  s.J -= beta * s.g_J;
  s.g_J = keep * s.g_J + lambda * given.kappa * excess;
  double along = lambda * delta;
#pragma unroll
  for (int t = 0; t < HALF; t++) {
    s.Omega[t] -= beta * s.g[t];
    s.g[t] = keep * s.g[t] + along * zz[t];
  }
#pragma unroll
  for (int i = 0; i < Z; i++) s.z[i] = next[i];
}

__device__ __forceinline__ void begin(Lane &s, const double *z) {
  s = Lane();
#pragma unroll
  for (int i = 0; i < Z; i++) s.z[i] = z[i];
}

/* In the order of a carry: K, J, Omega, their averages, z. */
__device__ __forceinline__ void store(const Lane &s, double *row) {
#pragma unroll
  for (int i = 0; i < M * N; i++) row[i] = s.K[i / N][i % N], row[i + M * N + 1 + Z * Z] = s.f[i / N][i % N];
  row[M * N] = s.J;
  row[2 * M * N + 1 + Z * Z] = s.g_J;
#pragma unroll
  for (int i = 0; i < Z * Z; i++) {
    row[M * N + 1 + i] = s.Omega[at(i / Z, i % Z)];
    row[2 * (M * N + 1) + Z * Z + i] = s.g[at(i / Z, i % Z)];
  }
#pragma unroll
  for (int i = 0; i < Z; i++) row[ROW - Z + i] = s.z[i];
}

/* Many seeds: a thread draws its noise itself. */
extern "C" __global__ void many(int steps, int seeds, const word *__restrict__ streams, const double *__restrict__ z,
                                double *rows) {
  int seed = blockIdx.x * blockDim.x + threadIdx.x;
  if (seed >= seeds) return;
  word s0 = streams[2 * seed], s1 = streams[2 * seed + 1];
  Lane s;
  begin(s, z + seed * Z);
  for (int k = 0; k < steps; k++) {
    double u[Z];
    normals(s0, s1, k, u);
    step(s, k, u);
  }
  store(s, rows + (long long)seed * ROW);
}

/* Few seeds: one warp of a block walks them, and the others draw the noise for its next steps into shared memory. */
#ifndef LANES
#define LANES 8
#endif
#define AHEAD (512 / LANES)
extern "C" __global__ void __launch_bounds__(256) few(int steps, int seeds, const word *__restrict__ streams,
                                                      const double *__restrict__ z, double *rows) {
  __shared__ double noise[2][AHEAD][Z][LANES];
  int first = blockIdx.x * LANES, lane = threadIdx.x % LANES, seed = min(first + lane, seeds - 1);
  bool walks = threadIdx.x < LANES;
  word s0 = streams[2 * seed], s1 = streams[2 * seed + 1];
  Lane s;
  begin(s, z + seed * Z);
  for (int lo = 0; lo < steps + AHEAD; lo += AHEAD) {
    if (threadIdx.x >= 32) {
      for (int k = threadIdx.x / LANES - 32 / LANES; k < AHEAD && lo + k < steps; k += (blockDim.x - 32) / LANES) {
        double u[Z];
        normals(s0, s1, lo + k, u);
#pragma unroll
        for (int i = 0; i < Z; i++) noise[lo / AHEAD % 2][k][i][lane] = u[i];
      }
    } else if (walks && lo > 0) {
      for (int k = lo - AHEAD; k < min(lo, steps); k++) {
        double u[Z];
#pragma unroll
        for (int i = 0; i < Z; i++) u[i] = noise[k / AHEAD % 2][k % AHEAD][i][lane];
        step(s, k, u);
      }
    }
    __syncthreads();
  }
  if (walks && first + lane < seeds) store(s, rows + (long long)seed * ROW);
}
