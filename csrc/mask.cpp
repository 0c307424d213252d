// Gradients of connections that do not exist, set to zero: once per training step, so it must cost next to nothing.
#include <stdint.h>

extern "C" __attribute__((visibility("default"))) void dynamicgate_mask(float* values, const uint8_t* mask, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = mask[i] ? values[i] : 0.0f;  // a select, so that infinities go too
}
