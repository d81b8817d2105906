// Multiplies two small matrices of integers through the tile vocabulary. Run before a kernel family is trusted: how the GPU
// spreads a tile over a simdgroup is documented for none of them.
#include "include/tile.h"

using namespace metal;

// out: [16][32] products of a and the rows of b, plus 1; then [16][32] products of the left half of that and c; then the 16
// sums of the rows of the left half.
kernel void tile_layout_test(
    device const bfloat* a [[buffer(0)]],  // [16][16]
    device const bfloat* b [[buffer(1)]],  // [32][16]
    device const bfloat* c [[buffer(2)]],  // [16][32]
    device float* out [[buffer(3)]])
{
  mt::tile<bfloat> left;
  mt::tile<bfloat> right0;
  mt::tile<bfloat> right1;
  mt::tile<float> first0;
  mt::tile<float> first1;
  mt::load(left, a, 16);
  mt::load_nk(right0, b, 16);
  mt::load_nk(right1, b + 16 * 16, 16);
  mt::fill(first0, 1.0f);
  mt::fill(first1, 1.0f);
  mt::multiply(first0, first1, left, right0, right1);
  mt::store(first0, out, 32);
  mt::store(first1, out + 16, 32);

  mt::tile<bfloat> again = mt::convert<bfloat>(first0);
  mt::tile<float> second0;
  mt::tile<float> second1;
  mt::load_kn(right0, c, 32);
  mt::load_kn(right1, c + 16, 32);
  mt::fill(second0, 0.0f);
  mt::fill(second1, 0.0f);
  mt::multiply(second0, second1, again, right0, right1);
  mt::store(second0, out + 512, 32);
  mt::store(second1, out + 528, 32);

  const float2 sums = mt::rows_sum(first0);
  for (int i = 0; i < 8; i++) {
    if (mt::column(i) == 0) {
      out[1024 + mt::row(i)] = sums[mt::row_half(i)];
    }
  }
}
