/* Special functions in plain C, without branches, so that lanes go through them side by side.

   One text serves every compiler: no library is asked, and the same argument gives the same bits in one lane or in
   sixteen. On a GPU a few products are fused with the sums that take them, always the same ones. Formulas and coefficients follow fdlibm
   (Sun Microsystems, 1993) for exp, expm1, log, pow, sin and cos, and Giles (Approximating the erfinv function, GPU
   Computing Gems, 2011) for the inverse of the error function. */
#ifdef __CUDACC_RTC__
#define int8_t signed char
#define int16_t short
#define int32_t int
#define int64_t long long
#define uint8_t unsigned char
#define uint16_t unsigned short
#define uint32_t unsigned int
#define uint64_t unsigned long long
#define FN static __device__ __forceinline__
#define GIVEN const __grid_constant__ Given /* a structure by value, in the memory of constants */
#define INFINITY __longlong_as_double(0x7ff0000000000000LL)
#define NAN __longlong_as_double(0x7ff8000000000000LL)
#else
#include <math.h>
#include <stdint.h>
#undef NAN
#undef INFINITY
#define NAN __builtin_nan("")
#define INFINITY __builtin_inf()
#define FN static inline __attribute__((always_inline))
#define GIVEN const struct Given
#endif

/* A test that hardly ever holds: a single lane jumps over what it guards, and waits for nothing. */
#if defined(__CUDACC_RTC__) || (!defined(__clang__) && __GNUC__ < 9)
#define RARELY(x) (x)
#else
#define RARELY(x) __builtin_expect_with_probability(!!(x), 0, 1.0)
#endif
/* An index clipped to 0 … most. One outside is rare, and the empty statement keeps compilers from waiting for the test. */
#ifndef __CUDACC_RTC__
FN int32_t clip32(int32_t i, int32_t most) {
  if (__builtin_expect((uint32_t)i > (uint32_t)most, 0)) { __asm__ volatile("" : "+r"(i)); return i < 0 ? 0 : most; }
  return i;
}
FN int32_t clip64(int64_t i, int64_t most) {
  if (__builtin_expect((uint64_t)i > (uint64_t)most, 0)) { __asm__ volatile("" : "+r"(i)); return i < 0 ? 0 : (int32_t)most; }
  return (int32_t)i;
}
#endif
/* A product and a sum, with one rounding on a GPU. */
#ifdef __CUDACC_RTC__
#define MAD(a, b, c) fma(a, b, c)
#else
#define MAD(a, b, c) ((a) * (b) + (c))
#endif
FN uint64_t bits64(double x) { union { double d; uint64_t u; } v; v.d = x; return v.u; }
FN double float64(uint64_t x) { union { double d; uint64_t u; } v; v.u = x; return v.d; }
FN uint32_t bits32(float x) { union { float f; uint32_t u; } v; v.f = x; return v.u; }
FN float float32(uint32_t x) { union { float f; uint32_t u; } v; v.u = x; return v.f; }
FN uint32_t rotate(uint32_t x, int r) { return (x << r) | (x >> (32 - r)); }
/* XLA flushes numbers below the smallest normal one to zero on a CPU, before and after each operation, and so does a
   program: it returns the settings of the thread, which are restored at its end. */
#ifndef __CUDACC_RTC__
#if defined(__x86_64__) || defined(__i386__)
static uint64_t flush_subnormals(void) { uint32_t old = __builtin_ia32_stmxcsr(); __builtin_ia32_ldmxcsr(old | 0x8040); return old; }
static void restore_arithmetic(uint64_t old) { __builtin_ia32_ldmxcsr((uint32_t)old); }
#elif defined(__aarch64__)
static void restore_arithmetic(uint64_t old) { __asm__ volatile("msr fpcr, %0" : : "r"(old)); }
static uint64_t flush_subnormals(void) {
  uint64_t old;
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  restore_arithmetic(old | 1 << 24);
  return old;
}
#else
static uint64_t flush_subnormals(void) { return 0; }
static void restore_arithmetic(uint64_t old) { (void)old; }
#endif
#endif
/* What is at an address, read here and now: a compiler for GPUs would put it off to where it is needed. */
#ifdef __CUDACC_RTC__
template <class T> FN T fetch(const T *p) { return *p; }
#define FETCH(T, TYPE, REGISTER) \
  FN T fetch(const T *p) { T x; asm volatile("ld.global.nc." TYPE " %0, [%1];" : "=" REGISTER(x) : "l"(p)); return x; }
FETCH(double, "f64", "d") FETCH(float, "f32", "f") FETCH(int32_t, "s32", "r") FETCH(uint32_t, "u32", "r")
FETCH(int64_t, "s64", "l") FETCH(uint64_t, "u64", "l")
#else
#define fetch(p) (*(p))
#endif
/* w as long as x is finite and below 2^1017, and not a number from then on: the high half of a double is a float whose
   exponent is full where that of the double is, or nearly so. */
FN float watched(float w, double x) { return fmaf(float32((uint32_t)(bits64(x) >> 32)), 0.0f, w); }
FN int popcount64(uint64_t x) {
  x = x - ((x >> 1) & 0x5555555555555555ull);
  x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
  return (int)((((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull) >> 56);
}

/* Whole numbers. Quotients of 32 bits are exact in double precision, and vectors have no other division. */
#ifdef __CUDACC_RTC__
FN int32_t to_int32(double x) { return __double2int_rz(x); } /* clamps, and takes what is no number to zero */
#else
FN int32_t to_int32(double x) {
  double y = x != x ? 0.0 : (x < -2147483648.0 ? -2147483648.0 : (x > 2147483647.0 ? 2147483647.0 : x));
  return (int32_t)y;
}
#endif
/* Casts saturate, and what is no number is zero. */
#define SATURATE(NAME, T, LOW, HIGH) \
  FN T to_##NAME(double x) { double y = x != x ? 0.0 : (x < LOW ? LOW : (x > HIGH ? HIGH : x)); return (T)y; }
SATURATE(int8, int8_t, -128.0, 127.0) SATURATE(uint8, uint8_t, 0.0, 255.0)
SATURATE(int16, int16_t, -32768.0, 32767.0) SATURATE(uint16, uint16_t, 0.0, 65535.0)
FN uint32_t to_uint32(double x) {
  double y = x != x ? 0.0 : (x < 0.0 ? 0.0 : (x > 4294967295.0 ? 4294967295.0 : x));
  return (uint32_t)y;
}
FN int64_t to_int64(double x) {
  double y = x != x ? 0.0 : (x < -9223372036854775808.0 ? -9223372036854775808.0 : x);
  return y >= 9223372036854775808.0 ? 9223372036854775807ll : (int64_t)(y >= 9223372036854775808.0 ? 0.0 : y);
}
FN uint64_t to_uint64(double x) {
  double y = x != x ? 0.0 : (x < 0.0 ? 0.0 : x);
  return y >= 18446744073709551616.0 ? 18446744073709551615ull : (uint64_t)(y >= 18446744073709551616.0 ? 0.0 : y);
}
FN int32_t div_int32(int32_t a, int32_t b) {
  double q = (double)a / (double)(b == 0 ? 1 : b);
  return b == 0 ? -1 : (q >= 2147483648.0 ? a : (int32_t)(q >= 2147483648.0 ? 0.0 : q));
}
FN int32_t rem_int32(int32_t a, int32_t b) {
  double d = (double)(b == 0 ? 1 : b), q = (double)a / d;
  return b == 0 ? a : (int32_t)((double)a - trunc(q) * d);
}
FN uint32_t div_uint32(uint32_t a, uint32_t b) {
  return b == 0 ? 0xffffffffu : (uint32_t)((double)a / (double)(b == 0 ? 1 : b));
}
FN uint32_t rem_uint32(uint32_t a, uint32_t b) {
  double d = (double)(b == 0 ? 1 : b), q = floor((double)a / d);
  return b == 0 ? a : (uint32_t)((double)a - q * d);
}
FN int64_t div_int64(int64_t a, int64_t b) { return b == 0 ? -1 : (b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b); }
FN int64_t rem_int64(int64_t a, int64_t b) { return b == 0 ? a : (b == -1 ? 0 : a % b); }
FN uint64_t div_uint64(uint64_t a, uint64_t b) { return b == 0 ? ~0ull : a / b; }
FN uint64_t rem_uint64(uint64_t a, uint64_t b) { return b == 0 ? a : a % b; }
#define SMALL(NAME, T, W) \
  FN T div_##NAME(T a, T b) { return (T)(b == 0 ? -1 : div_##W(a, b)); } \
  FN T rem_##NAME(T a, T b) { return (T)rem_##W(a, b); }
SMALL(int8, int8_t, int32) SMALL(int16, int16_t, int32) SMALL(uint8, uint8_t, uint32) SMALL(uint16, uint16_t, uint32)

/* The larger and the smaller of two: what is no number wins, and zeros are ordered by their signs. */
#define EXTREMES(T, SIZE) \
  FN T larger##SIZE(T a, T b) { return a > b ? a : (a < b ? b : (a == b ? float##SIZE(bits##SIZE(a) & bits##SIZE(b)) : a + b)); } \
  FN T smaller##SIZE(T a, T b) { return a < b ? a : (a > b ? b : (a == b ? float##SIZE(bits##SIZE(a) | bits##SIZE(b)) : a + b)); }
EXTREMES(float, 32) EXTREMES(double, 64)
/* A whole number for each float, in the total order that sorting uses. */
FN int64_t ordered64(double x) { int64_t b = (int64_t)bits64(x); return b ^ (int64_t)((uint64_t)(b >> 63) >> 1); }
FN int32_t ordered32(float x) { int32_t b = (int32_t)bits32(x); return b ^ (int32_t)((uint32_t)(b >> 31) >> 1); }

FN double round_away(double x) {
  double t = trunc(x), rest = fabs(x - t);
  return rest >= 0.5 ? t + (x < 0 ? -1.0 : 1.0) : t;
}

/* 2^k for a whole k that is given as a double, |k| <= 1022. */
FN double two_to(double k) { return float64((bits64(k + 6755399441055744.0) + 1023) << 52); }

FN double tc_exp(double x) {
  double in = x > 710.0 ? 710.0 : (x < -746.0 ? -746.0 : x);
  double k = (in * 1.44269504088896338700 + 6755399441055744.0) - 6755399441055744.0;
  double high = in - k * 6.93147180369123816490e-01, low = k * 1.90821492927058770002e-10, r = high - low, t = r * r;
  double c = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * (6.61375632143793436117e-05
             + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
  double y = 1.0 - ((low - (r * c) / (2.0 - c)) - high);
  double half = floor(k * 0.5);
  return (y * two_to(half)) * two_to(k - half);
}

/* exp(x) - 1 = 2^k (exp(r) - 1) + (2^k - 1) with |r| < 0.35, and for larger |x| as it stands. */
FN double tc_expm1(double x) {
  double in = fabs(x) < 1.0 ? x : 0.1, k = rint(in * 1.44269504088896338700), scale = two_to(k);
  double high = in - k * 6.93147180369123816490e-01, low = k * 1.90821492927058770002e-10, r = high - low;
  double lost = (high - r) - low, half = 0.5 * r, square = r * half;
  double p = 1.0 + square * (-3.33333333333331316428e-02 + square * (1.58730158725481460165e-03 + square
             * (-7.93650757867487942473e-05 + square * (4.00821782732936239552e-06 + square
             * -2.01099218183624371326e-07))));
  double t = 3.0 - p * half, e = square * ((p - t) / (6.0 - r * t));
  e = (r * (e - lost) - lost) - square;
  double y = scale * (r - e) + (scale - 1.0);
  y = fabs(x) < 1.0 ? y : tc_exp(x) - 1.0;
  return x == 0.0 ? x : y;
}

/* log(x) = k log 2 + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2). */
FN double tc_log(double x) {
  double in = x < 2.2250738585072014e-308 ? x * 18014398509481984.0 : x;
  uint64_t u = bits64(in) + (0x3ff0000000000000ull - 0x3fe6a09e00000000ull);
  double k = float64(0x4330000000000000ull | (u >> 52)) - 4503599627370496.0 - 1023.0
             - (x < 2.2250738585072014e-308 ? 54.0 : 0.0);
  double f = float64((u & 0x000fffffffffffffull) + 0x3fe6a09e00000000ull) - 1.0;
  double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s, w = z * z;
  double even = w * MAD(w, MAD(w, 1.531383769920937332e-01, 2.222219843214978396e-01), 3.999999999940941908e-01);
  double odd = z * MAD(w, MAD(w, MAD(w, 1.479819860511658591e-01, 1.818357216161805012e-01), 2.857142874366239149e-01),
                       6.666666666666735130e-01);
  double rest = half - MAD(s, half + (even + odd), k * 1.90821492927058770002e-10);
  double y = MAD(k, 6.93147180369123816490e-01, -(rest - f));
  y = x > 1.7976931348623157e308 ? x : y;
  y = x > 0.0 ? y : (x == 0.0 ? -INFINITY : NAN);
  return y;
}

FN double tc_log1p(double x) {
  double u = 1.0 + x, y = tc_log(u) + (x - (u - 1.0)) / u;
  y = u > 1.7976931348623157e308 ? x : y;
  return u == 0.0 ? -INFINITY : (x == 0.0 ? x : y);
}

FN double tc_logistic(double x) { return 1.0 / (1.0 + tc_exp(-x)); }

FN double tc_tanh(double x) {
  double a = fabs(x), t = tc_expm1(2.0 * (a > 22.0 ? 22.0 : a));
  double y = a < 0.5 ? t / (t + 2.0) : 1.0 - 2.0 / (t + 2.0);
  return x != x ? x : (x < 0.0 ? -y : (x > 0.0 ? y : x));
}

/* The high half of a double's digits. */
FN double high_half(double x) { return float64(bits64(x) & 0xffffffff00000000ull); }

/* log2(x) for 0 < x < infinity as *high + the value returned, to some 70 bits. */
FN double log2_in_two(double x, double *high) {
  int tiny = x < 2.2250738585072014e-308;
  double in = tiny ? x * 9007199254740992.0 : x;
  uint64_t u = bits64(in), j = u & 0x000fffffffffffffull;
  int middle = (j > 0x0003988effffffffull) & (j < 0x000bb67a00000000ull), upper = j >= 0x000bb67a00000000ull;
  double n = float64(0x4330000000000000ull | (u >> 52)) - 4503599627370496.0 - 1023.0 - (tiny ? 53.0 : 0.0)
             + (upper ? 1.0 : 0.0);
  uint64_t scaled = j | (upper ? 0x3fe0000000000000ull : 0x3ff0000000000000ull);
  double a = float64(scaled), b = middle ? 1.5 : 1.0;
  double p = a - b, v = 1.0 / (a + b), s = p * v, sh = high_half(s);
  uint64_t top = (scaled >> 32);
  double th = float64((((top >> 1) | 0x20000000ull) + 0x00080000ull + (middle ? 0x00040000ull : 0ull)) << 32);
  double tl = a - (th - b), sl = v * ((p - sh * th) - sh * tl), s2 = s * s;
  double r = s2 * s2 * (5.99999999999994648725e-01 + s2 * (4.28571428578550184252e-01 + s2 * (3.33333329818377432918e-01
             + s2 * (2.72728123808534006489e-01 + s2 * (2.30660745775561754067e-01 + s2 * 2.06975017800338417784e-01)))));
  r += sl * (sh + s);
  s2 = sh * sh;
  th = high_half(3.0 + s2 + r);
  tl = r - ((th - 3.0) - s2);
  p = sh * th;
  v = sl * th + tl * s;
  double ph = high_half(p + v), pl = v - (ph - p);
  double zh = 9.61796700954437255859e-01 * ph;
  double zl = -7.02846165095275826516e-09 * ph + pl * 9.61796693925975554329e-01 + (middle ? 1.35003920212974897128e-08 : 0.0);
  double dh = middle ? 5.84962487220764160156e-01 : 0.0;
  double t1 = high_half(((zh + zl) + dh) + n);
  *high = t1;
  return zl - (((t1 - n) - dh) - zh);
}

/* x^y for 0 < x < infinity and finite y: 2^(y log2 x). */
FN double positive_power(double x, double y) {
  double t1, t2 = log2_in_two(x, &t1);
  double limit = 3.0e300, in = y > limit ? limit : (y < -limit ? -limit : y);
  double y1 = high_half(in), pl = (in - y1) * t1 + in * t2, ph = y1 * t1, z = pl + ph;
  int over = z > 1024.5, under = z < -1080.0;
  ph = over | under ? 0.0 : ph;
  pl = over | under ? 0.0 : pl;
  double n = ((pl + ph) + 6755399441055744.0) - 6755399441055744.0;
  ph -= n;
  double t = high_half(pl + ph), u = t * 6.93147182464599609375e-01;
  double v = (pl - (t - ph)) * 6.93147180559945286227e-01 + t * -1.90465429995776804525e-09;
  z = u + v;
  double w = v - (z - u);
  t = z * z;
  t1 = z - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * (6.61375632143793436117e-05
       + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08))));
  double r = (z * t1) / (t1 - 2.0) - (w + z * w), half = floor(n * 0.5);
  z = ((1.0 - (r - z)) * two_to(half)) * two_to(n - half);
  return over ? INFINITY : (under ? 0.0 : z);
}

FN double tc_pow(double x, double y) {
  double a = fabs(x), whole = floor(y), big = 1.7976931348623157e308;
  int edge = (a == 0.0) | (a > big) | (x != x) | (y != y);
  double z = positive_power(edge ? 1.0 : a, y != y ? 0.0 : y);
  int is_whole = (whole == y), odd = is_whole & (fabs(y) < 9007199254740992.0) & (whole - 2.0 * floor(0.5 * whole) != 0.0);
  z = a == 0.0 ? (y > 0.0 ? 0.0 : INFINITY) : z;
  z = a > big ? (y > 0.0 ? INFINITY : 0.0) : z;
  z = fabs(y) > big ? (a == 1.0 ? 1.0 : ((a > 1.0) == (y > 0.0) ? INFINITY : 0.0)) : z;
  z = (bits64(x) >> 63) & (uint64_t)odd ? -z : z;
  z = (x < 0.0) & (a <= big) & (fabs(y) <= big) & !is_whole ? NAN : z;
  z = (x != x) | (y != y) ? NAN : z;
  return (x == 1.0) | (y == 0.0) ? 1.0 : z;
}

/* Exactly a b = the value returned + *low. */
FN double two_product(double a, double b, double *low) {
  double p = a * b, ah = high_half(a), al = a - ah, bh = high_half(b), bl = b - bh;
  *low = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
  return p;
}
FN double two_sum(double a, double b, double *low) {
  double s = a + b, c = s - a;
  *low = (a - (s - c)) + (b - c);
  return s;
}

/* x - n pi/2 in two parts, with pi/2 to 159 bits. */
FN double reduced(double x, double n, double *low) {
  double e1, e2, e3, f1, f2, f3, p1 = two_product(n, 1.5707963267948966, &e1);
  double p2 = two_product(n, 6.123233995736766e-17, &e2), p3 = two_product(n, -1.4973849048591833e-33, &e3);
  double a = two_sum(x, -p1, &f1), b = two_sum(a, -e1, &f2);
  double c = two_sum(b, -p2, &f3);
  double rest = ((f1 + f2) + f3) - (e2 + p3) - e3, s = c + rest;
  *low = rest - (s - c);
  return s;
}
FN double sine_of_small(double x, double tail) {
  double z = x * x, v = z * x;
  double r = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * (2.75573137070700676789e-06
             + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)));
  return x - ((z * (0.5 * tail - v * r) - tail) - v * -1.66666666666666324348e-01);
}
FN double cosine_of_small(double x, double tail) {
  double z = x * x, w = z * z;
  double r = z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05))
             + w * w * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11));
  double half = 0.5 * z, v = 1.0 - half;
  return v + (((1.0 - v) - half) + (z * r - x * tail));
}
/* For |x| below 1e9; beyond, the argument wants more digits of pi. */
FN double sine_shifted(double x, double quarters) {
  double n = rint(x * 6.36619772367581382433e-01), low, r = reduced(x, n, &low);
  double q = n + quarters, turn = q - 4.0 * floor(0.25 * q);
  double s = sine_of_small(r, low), c = cosine_of_small(r, low);
  double y = (turn == 1.0) | (turn == 3.0) ? c : s;
  y = turn >= 2.0 ? -y : y;
  return y;
}
FN double tc_sin(double x) { return x == 0.0 ? x : sine_shifted(x, 0.0); }
FN double tc_cos(double x) { return sine_shifted(x, 1.0); }

/* -log(1 - x^2) without cancellation: 1 - x is exact where it matters. */
FN double erf_inv_depth(double x) { return -tc_log((1.0 - x) * (1.0 + x)); }
/* The inverse of the error function, up to a depth of 6.25, and beyond. Each polynomial is four, in a^4, side by side. */
FN double erf_inv_middle(double x, double w) {
  double a = w - 3.125;
  double a2 = a * a, a4 = a2 * a2;
  double p0 = MAD(MAD(MAD(MAD(MAD(1.2858480715256400167e-18, a4, 6.6376381343583238325e-15), a4,
      -1.2975133253453532498e-11), a4, -2.9070369957882005086e-08), a4, 0.0001867342080340571352), a4,
      1.6536545626831027356);
  double p1 = MAD(MAD(MAD(MAD(MAD(-1.685059138182016589e-19, a4, 2.0972767875968561637e-17), a4,
      2.6335093153082322977e-12), a4, -4.1126339803469836976e-09), a4, -1.3882523362786468719e-05), a4,
      0.24015818242558961693);
  double p2 = MAD(MAD(MAD(MAD(MAD(-3.6444120640178196996e-21, a4, -1.333171662854620906e-16), a4,
      -8.1519341976054721522e-14), a4, 1.051212273321532285e-09), a4, -1.3654692000834678645e-06), a4,
      -0.0060336708714301490533);
  double p3 = MAD(MAD(MAD(MAD(1.115787767802518096e-17, a4, -4.0545662729752068639e-14), a4,
      -5.4154120542946279317e-11), a4, 4.2347877827932403518e-07), a4, -0.00074070253416626697512);
  double p = MAD(MAD(p3, a, p2), a2, MAD(p1, a, p0));
  return p * x;
}
FN double erf_inv_tail(double x, double w) {
  double root = sqrt(w), a = root - 3.25, b = root - 5.0;
  double a2 = a * a, a4 = a2 * a2;
  double q0 = ((((-2.7517406297064545428e-07 * a4 + 2.9234449089955446044e-06) * a4
      + 2.4031110387097893999e-05) * a4 + 0.0024914420961078508066) * a4 + 3.0838856104922207635);
  double q1 = ((((9.0756561938885390979e-08 * a4 + -4.013867526981545969e-06) * a4
      + 6.8284851459573175448e-05) * a4 + -0.0016882755560235047313) * a4 + 1.0052589676941592334);
  double q2 = ((((2.2137376921775787049e-09 * a4 + 1.5027403968909827627e-06) * a4
      + -4.7318229009055733981e-05) * a4 + 0.00095328937973738049703) * a4 + 0.005370914553590063617);
  double q3 = (((1.8239629214389227755e-08 * a4 + 1.2475304481671778723e-05) * a4
      + -0.0003550375203628474796) * a4 + -0.0037512085075692412107);
  double q = (q0 + q1 * a) + (q2 + q3 * a) * a2;
  double b2 = b * b, b4 = b2 * b2;
  double r0 = ((((-2.7109920616438573243e-11 * b4 + 7.6157012080783393804e-09) * b4
      + 2.2900482228026654717e-07) * b4 + 7.5995277030017761139e-05) * b4 + 4.8499064014085844221);
  double r1 = (((-3.7894654401267369937e-09 * b4 + -6.7711997758452339498e-08) * b4
      + -1.9681778105531670567e-05) * b4 + 1.0103004648645343977);
  double r2 = (((1.5076572693500548083e-09 * b4 + 2.9147953450901080826e-08) * b4
      + 4.5260625972231537039e-06) * b4 + -0.00013871931833623122026);
  double r3 = (((-2.5556418169965252055e-10 * b4 + -1.4960026627149240478e-08) * b4
      + -9.9298272942317002539e-07) * b4 + -0.00021503011930044477347);
  double r = (r0 + r1 * b) + (r2 + r3 * b) * b2;
  return fabs(x) == 1.0 ? x * INFINITY : (w < 16.0 ? q : r) * x;
}
