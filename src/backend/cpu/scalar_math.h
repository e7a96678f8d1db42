// log(1 + x), gates and sine/cosine in double precision, made of + - * / and bit operations only, so that every machine
// gives the same bits. For values that are few: gates a head, angles a row.
#pragma once

namespace tensorfold::backend::cpu {

/// log(1 + x) for x >= 0, to about 1e-15 relative.
double portable_log1p(double x);
/// log(1 + e^x), taken as x above 20.
double portable_softplus(double x);
double portable_sigmoid(double x);
/// exp(-exp(decay_log) * softplus(x)): how much of a recurrent state survives a step.
double portable_decay(double decay_log, double x);
struct SineCosine {
  float sine;
  float cosine;
};
/// Of |angle| up to about 1e9, correct to the last float bit but for rare half-way cases.
SineCosine portable_sine_cosine(double angle);

}  // namespace tensorfold::backend::cpu
