//! What a user may choose about the CPU model.

/// Number format of the keys and values that the attention layers keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvPrecision {
    /// bfloat16, as on the GPU: half the memory. It costs the demo model a mean KL of 1e-6, and an earlier one the top token of 2 positions in 192.
    Bf16,
    /// f32, as all other activations: 40 KB a token for Qwen3.6-35B-A3B.
    #[default]
    F32,
}

/// The instruction set of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSet {
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// The same with AVX-VNNI: one instruction multiplies 16-bit integers and adds them up.
    AvxVnni,
    /// The same with AVX-512 VNNI, and two weight rows in a 512-bit vector in integer products.
    Avx512Vnni,
    /// The same, and products of many activations by the matrix unit of AMX (Linux).
    Avx512VnniAmx,
    /// AArch64.
    Neon,
    /// Plain Rust, on any processor.
    Portable,
}

/// What a user may choose about the CPU model.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the caller's included; `None` for every processor that this process may use.
    pub threads: Option<usize>,
    /// Number format of the KV cache.
    pub kv: KvPrecision,
    /// f32 activations throughout, instead of activations quantized for integer dot products where that is faster.
    pub exact: bool,
    /// Kernels to use; `None` for the best that the processor runs.
    pub kernels: Option<KernelSet>,
}
