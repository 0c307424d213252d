// Registers the torch op through torch's stable C interface (torch >= 2.10). The few functions it needs are declared here
// and looked up in the torch that is already loaded: the build needs no torch, and one build works with every torch.
#include <dlfcn.h>
#include <string.h>

#include <stdexcept>
#include <string>

#include "entry.h"
#include "pool.h"
#include "validate.h"

namespace dynamicgate {
namespace {

using Value = uint64_t;  // StableIValue: a handle, a number, or a pointer to the value of an optional
using Handle = void*;    // AtenTensorHandle, TorchLibraryHandle
using Boxed = void (*)(Value* stack, uint64_t arguments, uint64_t results);

constexpr uint64_t kAbiVersion = (2ull << 56) | (10ull << 48);  // torch 2.10
constexpr int32_t kFloat32 = 6, kInt32 = 3, kCpu = 0;

struct Torch {
  int32_t (*init_library)(const char* space, const char* key, const char* file, uint32_t line, Handle*);
  int32_t (*implement)(Handle library, const char* name, Boxed, uint64_t abi_version);
  int32_t (*data)(Handle, void**);
  int32_t (*dim)(Handle, int64_t*);
  int32_t (*sizes)(Handle, int64_t**);
  int32_t (*strides)(Handle, int64_t**);
  int32_t (*numel)(Handle, int64_t*);
  int32_t (*dtype)(Handle, int32_t*);
  int32_t (*contiguous)(Handle, bool*);
  int32_t (*empty)(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device, int32_t index,
                   Handle*);
  int32_t (*release)(Handle);
  int32_t (*threads)(uint32_t*);
  ParallelFor parallel_for;
} torch;

ChainFn chain = nullptr;
DecodeFn decode = nullptr;

struct Tensor {  // owns its handle
  Handle handle;
  explicit Tensor(Value value) : handle(reinterpret_cast<Handle>(value)) {}
  ~Tensor() {
    if (handle) torch.release(handle);
  }
  Tensor(const Tensor&) = delete;
  template <class T>
  T* data() const {
    void* pointer = nullptr;
    torch.data(handle, &pointer);
    return static_cast<T*>(pointer);
  }
  int64_t numel() const {
    int64_t n = 0;
    torch.numel(handle, &n);
    return n;
  }
  void expect(const char* name, int32_t dtype, bool whole) const {
    int32_t found = -1;
    bool contiguous = true;
    torch.dtype(handle, &found);
    if (whole) torch.contiguous(handle, &contiguous);
    if (found != dtype || !contiguous)
      throw std::invalid_argument(std::string(name) + " must be " + (whole ? "contiguous " : "") +
                                  (dtype == kFloat32 ? "float32" : "int32"));
  }
};

Value take_optional(Value value) {
  if (!value) return 0;
  Value* inside = reinterpret_cast<Value*>(value);
  const Value taken = *inside;
  delete inside;
  return taken;
}

void run_chain(Value* stack, uint64_t, uint64_t) {
  const Tensor x(stack[0]), weights(stack[1]), program_words(stack[2]), factor(take_optional(stack[3]));
  const int64_t outputs = static_cast<int64_t>(stack[4]);
  x.expect("x", kFloat32, false);
  weights.expect("weights", kFloat32, true);
  program_words.expect("program", kInt32, true);
  const Program* program = program_words.data<const Program>();
  const int64_t words = program_words.numel();
  const std::string problem = problem_of(program, words, weights.numel(), true);
  if (!problem.empty() || outputs != program->outputs)
    throw std::invalid_argument("weights and program must come from the same call of pack" +
                                (problem.empty() ? "" : ": " + problem));
  int64_t dim = 0, *sizes, *strides;
  torch.dim(x.handle, &dim);
  torch.sizes(x.handle, &sizes);
  torch.strides(x.handle, &strides);
  if (dim != 2 || sizes[1] != program->inputs)
    throw std::invalid_argument("x must have " + std::to_string(program->inputs) + " features in each row, received " +
                                (dim == 2 ? std::to_string(sizes[1]) : std::to_string(dim) + " dimensions"));
  const int64_t given = given_blocks(*program);
  if ((given != 0) != (factor.handle != nullptr) || (given && factor.numel() != given * sizes[0]))
    throw std::invalid_argument("a chain with a block and no gate, and no other, needs factor [rows, blocks]");
  if (given) factor.expect("factor", kFloat32, true);

  const int64_t y_sizes[2] = {sizes[0], outputs}, y_strides[2] = {outputs, 1};
  Handle y = nullptr;
  if (torch.empty(2, y_sizes, y_strides, kFloat32, kCpu, 0, &y)) throw std::runtime_error("no memory for the result");
  Call call = {};
  call.program = program;
  call.weights = weights.data<const float>();
  call.x = x.data<const float>();
  call.rows = sizes[0], call.x_row_stride = strides[0], call.x_column_stride = sizes[1] == 1 ? 1 : strides[1];
  if (given) call.factor = factor.data<const float>();
  void* result = nullptr;
  torch.data(y, &result);
  call.y = static_cast<float*>(result);
  run_call(call);
  stack[0] = reinterpret_cast<Value>(y);
}

}  // namespace

int64_t given_blocks(const Program& program) {
  for (int l = 0; l < program.layers && !program.stages; ++l) {
    const Layer& layer = program.layer()[l];
    if (layer.blocks && !layer.gate_stages) return layer.blocks;
  }
  return 0;
}

static Pool usable_pool() {
  uint32_t threads = 1;
  torch.threads(&threads);
  return {run_tasks, usable_threads(static_cast<int>(threads))};
}

void run_call(Call call) {
  const Pool pool = usable_pool();
  call.pool = &pool;
  if (call.rows) chain(call);
}

void run_decoder_call(DecoderCall call) {
  const Pool pool = usable_pool();
  call.pool = &pool;
  decode(call);
}

}  // namespace dynamicgate

#define DG_EXPORT extern "C" __attribute__((visibility("default")))

// Null on success, else what is missing. The schema must have been defined before.
DG_EXPORT const char* dynamicgate_register() {
  using dynamicgate::torch;
#ifdef __APPLE__
  void* library = RTLD_DEFAULT;
#else
  void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_NOW);
  if (!library) return "libtorch_cpu.so is not loaded";
#endif
  const struct {
    void* slot;
    const char* name;
  } wanted[] = {
      {&torch.init_library, "aoti_torch_library_init_impl"},
      {&torch.implement, "torch_library_impl"},
      {&torch.data, "aoti_torch_get_data_ptr"},
      {&torch.dim, "aoti_torch_get_dim"},
      {&torch.sizes, "aoti_torch_get_sizes"},
      {&torch.strides, "aoti_torch_get_strides"},
      {&torch.numel, "aoti_torch_get_numel"},
      {&torch.dtype, "aoti_torch_get_dtype"},
      {&torch.contiguous, "aoti_torch_is_contiguous"},
      {&torch.empty, "aoti_torch_empty_strided"},
      {&torch.release, "aoti_torch_delete_tensor_object"},
      {&torch.threads, "torch_get_num_threads"},
      {&torch.parallel_for, "torch_parallel_for"},
  };
  for (const auto& function : wanted) {
    void* found = dlsym(library, function.name);
    if (!found) return function.name;
    memcpy(function.slot, &found, sizeof found);
  }
  dynamicgate::use_pool(torch.parallel_for);
  dynamicgate::chain = dynamicgate::best_level().chain;
  dynamicgate::decode = dynamicgate::best_level().decode;
  dynamicgate::Handle registered = nullptr;  // kept for the life of the process: deleting it would unregister the op
  if (torch.init_library("dynamicgate", "CPU", __FILE__, __LINE__, &registered) ||
      torch.implement(registered, "run_chain", dynamicgate::run_chain, dynamicgate::kAbiVersion))
    return "torch refused the kernel";
  return nullptr;
}

DG_EXPORT const char* dynamicgate_level() { return dynamicgate::best_level().name; }

// Writes what is wrong with a program into `text`, at most `room` bytes with the zero at the end; nothing if it is whole.
DG_EXPORT void dynamicgate_problem(const int32_t* words, int64_t count, int64_t floats, char* text, int64_t room) {
  using namespace dynamicgate;
  strncpy(text, problem_of(reinterpret_cast<const Program*>(words), count, floats, true).c_str(), room - 1);
  text[room - 1] = 0;
}

// For tests: memory that a kernel does not write is NaN.
DG_EXPORT void dynamicgate_poison(int on) { dynamicgate::poison = on; }
