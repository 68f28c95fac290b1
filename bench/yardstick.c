/* What a careful engineer would write by hand: Fast TDC on the random MDP of Figure 1, in float64, with alias tables and a
   Threefry key for every seed and step, W seeds side by side. It keeps no record and makes no check. With -DGAIN a third
   level learns the mean reward, which is taken from each reward. */
#include <stdint.h>

#define D 10
#ifndef W
#define W 16
#endif

typedef uint32_t word;

static inline void threefry(const word *a, const word *b, word *x, word *y) {
  word k[3][W];
  for (int i = 0; i < W; i++) {
    k[0][i] = a[i]; k[1][i] = b[i]; k[2][i] = a[i] ^ b[i] ^ 0x1BD11BDAu;
    x[i] += a[i]; y[i] += b[i];
  }
#define ROUND(r) for (int i = 0; i < W; i++) { x[i] += y[i]; y[i] = ((y[i] << r) | (y[i] >> (32 - r))) ^ x[i]; }
#define KEY(p, q, n) for (int i = 0; i < W; i++) { x[i] += k[p][i]; y[i] += k[q][i] + n; }
#define EVEN ROUND(13) ROUND(15) ROUND(26) ROUND(6)
#define ODD ROUND(17) ROUND(29) ROUND(16) ROUND(24)
  EVEN KEY(1, 2, 1u) ODD KEY(2, 0, 2u) EVEN KEY(0, 1, 3u) ODD KEY(1, 2, 4u) EVEN KEY(2, 0, 5u)
}

/* Groups first to last-1 of W seeds each, `steps` steps from zero; theta gets D numbers a seed. */
void run(int steps, int first, int last, int S, int A, const double *keep, const int *other, const double *next_keep,
         const int *next_other, const double *ratio, const double *reward, const double *Phi, const word *streams,
         double alpha, double beta, double c, double shift, double gamma, double *theta) {
  for (int group = first; group < last; group++) {
    double t[D][W] = {0}, o[D][W] = {0}, f[D][W] = {0}, g[D][W] = {0};
#ifdef GAIN
    double mean[W] = {0}, h[W] = {0};
#endif
    word s0[W], s1[W];
    for (int i = 0; i < W; i++) { s0[i] = streams[2 * (group * W + i)]; s1[i] = streams[2 * (group * W + i) + 1]; }
    for (int k = 0; k < steps; k++) {
      word k0[W], k1[W];
      double u[3][W];
      for (int i = 0; i < W; i++) { k0[i] = 0; k1[i] = k; }
      threefry(s0, s1, k0, k1);
      for (int n = 0; n < 3; n++) {
        word x[W], y[W];
        for (int i = 0; i < W; i++) { x[i] = 0; y[i] = n; }
        threefry(k0, k1, x, y);
        for (int i = 0; i < W; i++) {
          union { uint64_t u; double d; } v;
          v.u = ((((uint64_t)x[i] << 32) | y[i]) >> 12) | 0x3FF0000000000000ull;
          u[n][i] = v.d - 1.0;
        }
      }
      int s[W], next[W];
      double rho[W], delta[W], along[W], now[D][W], then[D][W];
      for (int i = 0; i < W; i++) {
        double at = u[0][i] * S;
        int j = (int)at;
        s[i] = at - j < keep[j] ? j : other[j];
      }
      for (int i = 0; i < W; i++) {
        int pair = s[i] * A + (int)(u[1][i] * A);
        double at = u[2][i] * S;
        int j = (int)at, e = pair * S + j;
        rho[i] = ratio[pair];
        next[i] = at - j < next_keep[e] ? j : next_other[e];
        delta[i] = reward[s[i]];
        along[i] = 0;
#ifdef GAIN
        delta[i] -= mean[i];
#endif
      }
      for (int d = 0; d < D; d++)
        for (int i = 0; i < W; i++) { now[d][i] = Phi[s[i] * D + d]; then[d][i] = gamma * Phi[next[i] * D + d]; }
      for (int d = 0; d < D; d++)
        for (int i = 0; i < W; i++) { delta[i] += (then[d][i] - now[d][i]) * t[d][i]; along[i] += now[d][i] * o[d][i]; }
      double lambda = c / (k + shift);
#ifdef GAIN
      for (int i = 0; i < W; i++) {
        double H = rho[i] * (mean[i] - reward[s[i]]);
        mean[i] -= GAIN * h[i];
        h[i] += lambda * (H - h[i]);
      }
#endif
      for (int d = 0; d < D; d++)
        for (int i = 0; i < W; i++) {
          double F = 2 * rho[i] * (then[d][i] * along[i] - delta[i] * now[d][i]);
          double G = now[d][i] * (along[i] - rho[i] * delta[i]);
          t[d][i] -= alpha * f[d][i];
          o[d][i] -= beta * g[d][i];
          f[d][i] += lambda * (F - f[d][i]);
          g[d][i] += lambda * (G - g[d][i]);
        }
    }
    for (int d = 0; d < D; d++)
      for (int i = 0; i < W; i++) theta[(group * W + i) * D + d] = t[d][i];
  }
}
