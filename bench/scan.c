/* The loops of bench/scan.py, written by hand. */
#include <math.h>
#include <stdint.h>

void markov(int64_t n, const double *cdf, const double *u, int32_t *path, int32_t *last) {
  int32_t s = 0;
  for (int64_t t = 0; t < n; t++) {
    const double *row = cdf + 4 * s;
    s = (u[t] > row[0]) + (u[t] > row[1]) + (u[t] > row[2]);
    path[t] = s;
  }
  *last = s;
}

/* Sixty coupled scalars, each pulled towards a squashed mixture of its neighbours. */
void leaves(int64_t n, const double *weight, const double *x, double *h, double *mean) {
  double next[60];
  for (int64_t t = 0; t < n; t++) {
    double sum = 0;
    for (int i = 0; i < 60; i++) {
      double z = weight[i] * h[(i + 1) % 60] + x[t];
      next[i] = 0.9 * h[i] + 0.1 * z / (1 + fabs(z));
    }
    for (int i = 0; i < 60; i++) sum += h[i] = next[i];
    mean[t] = sum / 60;
  }
}

/* The same, and the derivative of the sum of the means with respect to the weights, by the adjoint recurrence. */
void leaves_gradient(int64_t n, const double *weight, const double *x, const double *start, double *store, double *grad) {
  double h[60], d[60], e[60];
  for (int i = 0; i < 60; i++) h[i] = start[i], grad[i] = d[i] = 0;
  for (int64_t t = 0; t < n; t++) {
    double *old = store + 60 * t;
    for (int i = 0; i < 60; i++) old[i] = h[i];
    for (int i = 0; i < 60; i++) {
      double z = weight[i] * old[(i + 1) % 60] + x[t];
      h[i] = 0.9 * old[i] + 0.1 * z / (1 + fabs(z));
    }
  }
  for (int64_t t = n - 1; t >= 0; t--) {
    const double *old = store + 60 * t;
    for (int i = 0; i < 60; i++) d[i] += 1.0 / 60;
    for (int i = 0; i < 60; i++) e[i] = 0.9 * d[i];
    for (int i = 0; i < 60; i++) {
      int j = (i + 1) % 60;
      double z = weight[i] * old[j] + x[t], r = 1 / (1 + fabs(z)), dz = d[i] * 0.1 * r * r;
      grad[i] += dz * old[j];
      e[j] += dz * weight[i];
    }
    for (int i = 0; i < 60; i++) d[i] = e[i];
  }
}

/* Position and velocity in the plane, observed positions: F, Q and R I known. */
void kalman(int64_t n, const double *F, const double *Q, double r, const double *y, double *m, double *P, double *out) {
  for (int64_t t = 0; t < n; t++) {
    double mp[4], FP[16], C[16], K[8], P2[16];
    for (int i = 0; i < 4; i++) {
      mp[i] = 0;
      for (int k = 0; k < 4; k++) mp[i] += F[4 * i + k] * m[k];
      for (int j = 0; j < 4; j++) {
        FP[4 * i + j] = 0;
        for (int k = 0; k < 4; k++) FP[4 * i + j] += F[4 * i + k] * P[4 * k + j];
      }
    }
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++) {
        C[4 * i + j] = Q[4 * i + j];
        for (int k = 0; k < 4; k++) C[4 * i + j] += FP[4 * i + k] * F[4 * j + k];
      }
    double a = C[0] + r, b = C[1], c = C[4], d = C[5] + r, det = a * d - b * c;
    for (int i = 0; i < 4; i++) {
      K[2 * i] = (C[4 * i] * d - C[4 * i + 1] * c) / det;
      K[2 * i + 1] = (C[4 * i + 1] * a - C[4 * i] * b) / det;
    }
    double e0 = y[2 * t] - mp[0], e1 = y[2 * t + 1] - mp[1];
    for (int i = 0; i < 4; i++) {
      m[i] = out[4 * t + i] = mp[i] + K[2 * i] * e0 + K[2 * i + 1] * e1;
      for (int j = 0; j < 4; j++) P2[4 * i + j] = C[4 * i + j] - K[2 * i] * C[j] - K[2 * i + 1] * C[4 + j];
    }
    for (int i = 0; i < 16; i++) P[i] = P2[i];
  }
}

void td(int64_t n, const int32_t *s, const int32_t *next, const double *reward, double *V, double *error) {
  for (int64_t t = 0; t < n; t++) {
    double delta = reward[t] + 0.95 * V[next[t]] - V[s[t]];
    V[s[t]] += 0.05 * delta;
    error[t] = delta;
  }
}
