//! The kernels' parameter structs, made from `kernels/include/params.h` by the build script.

include!(concat!(env!("OUT_DIR"), "/params.rs"));

/// A struct of 4-byte numbers without padding, so that its bytes are what a kernel reads.
///
/// # Safety
/// Implemented only for `#[repr(C)]` structs whose every field is a `u32`, an `f32`, or an array or struct of those.
pub unsafe trait Params: Copy {
    /// The struct as the kernel reads it.
    fn bytes(&self) -> Vec<u8> {
        let size = std::mem::size_of::<Self>();
        // SAFETY: by the trait's contract all `size` bytes are initialised numbers.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size) }.to_vec()
    }
}

macro_rules! params {
    ($($name:ident: $words:expr;)*) => {$(
        // SAFETY: the build script makes these structs of 4-byte numbers only, and the size below leaves no room for padding.
        unsafe impl Params for $name {}
        const _: () = assert!(std::mem::size_of::<$name>() == 4 * $words && std::mem::align_of::<$name>() == 4);
    )*};
}

/// 4-byte words of an [`Encoding`].
const ENCODING: usize = 5;

params! {
    Encoding: ENCODING;
    StepState: 4;
    EmbedParams: 3 + ENCODING;
    RmsNormParams: 2;
    GemvParams: 4 + 4 * 4 + 1 + 4 * ENCODING;
    ExpertParams: 10 + 6 * ENCODING;
    SwigluParams: 1;
    AttentionPrepareParams: 5;
    AttentionDecodeParams: 6;
    AttentionStreamedParams: 5;
    AttentionPrefillParams: 4;
    DeltaParams: 7;
    GemmParams: 3 + 3 * 4 + 2 + 4 * ENCODING;
    MoeParams: 8;
    DequantizeParams: 2 + ENCODING;
    SampleParams: 11;
    SampleSlices: 1;
}
