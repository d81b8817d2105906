// Philox4x32-10, a counter-based random generator (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): every
// number is a function of the seed and a counter, so the host can compute the same one.
#pragma once
#include "common.h"

// The first word for counter (counter, 0, 0, 0).
METAL_FUNC uint philox(uint counter, uint seed_low, uint seed_high) {
  uint c0 = counter;
  uint c1 = 0;
  uint c2 = 0;
  uint c3 = 0;
  for (int round = 0; round < 10; round++) {
    const ulong a = ulong(0xD2511F53u) * c0;
    const ulong b = ulong(0xCD9E8D57u) * c2;
    c0 = uint(b >> 32) ^ c1 ^ seed_low;
    c1 = uint(b);
    c2 = uint(a >> 32) ^ c3 ^ seed_high;
    c3 = uint(a);
    seed_low += 0x9E3779B9u;
    seed_high += 0xBB67AE85u;
  }
  return c0;
}

// At least 0 and below 1: 24 bits, which a float holds exactly.
METAL_FUNC float philox_uniform(uint counter, uint seed_low, uint seed_high) {
  return float(philox(counter, seed_low, seed_high) >> 8) * (1.0f / 16777216.0f);
}
