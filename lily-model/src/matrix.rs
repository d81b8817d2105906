//! Weight matrices in the compressed form in which a checkpoint holds them, and the definition of what each form means.

use half::{bf16, f16};

use crate::bytes::Bytes;

/// An unquantized number format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
    /// IEEE single precision
    F32,
}

impl FloatType {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            FloatType::Bf16 | FloatType::F16 => 2,
            FloatType::F32 => 4,
        }
    }

    /// Number `index` of the little-endian numbers in `bytes`.
    pub fn read(self, bytes: &[u8], index: usize) -> f32 {
        match self {
            FloatType::Bf16 => bf16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            FloatType::F16 => f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            FloatType::F32 => {
                let at = 4 * index;
                f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }
        }
    }
}

/// How the elements of a matrix are stored (MLX's formats).
///
/// In the quantized formats a row is one little-endian string of bits: code `i` lies in bits `[i * bits, (i + 1) * bits)`,
/// and each group of consecutive columns has its own scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    /// Plain numbers.
    Float(FloatType),
    /// `scale * code + bias` with unsigned codes and a scale and bias per group.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Columns of a group: 32, 64 or 128.
        group_size: usize,
        /// Format of the scales and biases.
        scale_type: FloatType,
    },
    /// E2M1 elements, groups of 32, an E8M0 scale (`2^(byte - 127)`).
    Mxfp4,
    /// E2M1 elements, groups of 16, an E4M3 scale, and one f32 factor for the whole matrix (1 where the file has none).
    Nvfp4 {
        /// Factor of every scale.
        global_scale: f32,
    },
    /// E4M3 elements, groups of 32, an E8M0 scale.
    Mxfp8,
}

impl Encoding {
    /// Bits of one element.
    pub fn bits(self) -> usize {
        match self {
            Encoding::Float(float) => 8 * float.size(),
            Encoding::Affine { bits, .. } => bits as usize,
            Encoding::Mxfp4 | Encoding::Nvfp4 { .. } => 4,
            Encoding::Mxfp8 => 8,
        }
    }

    /// Columns that share a scale, or `None` for plain numbers.
    pub fn group_size(self) -> Option<usize> {
        match self {
            Encoding::Float(_) => None,
            Encoding::Affine { group_size, .. } => Some(group_size),
            Encoding::Mxfp4 | Encoding::Mxfp8 => Some(32),
            Encoding::Nvfp4 { .. } => Some(16),
        }
    }

    /// Bytes of the elements, scales and biases of `[count, rows, cols]`, or `None` where a row is not whole groups and bytes or the
    /// sizes overflow.
    pub fn expected_bytes(self, count: usize, rows: usize, cols: usize) -> Option<(usize, usize, usize)> {
        let all_rows = count.checked_mul(rows)?;
        let row_bits = cols.checked_mul(self.bits())?;
        let groups = match self.group_size() {
            Some(group_size) if !cols.is_multiple_of(group_size) => return None,
            Some(group_size) => cols / group_size,
            None => 0,
        };
        if !row_bits.is_multiple_of(8) {
            return None;
        }
        let codes = all_rows.checked_mul(row_bits / 8)?;
        let scales = all_rows.checked_mul(groups.checked_mul(self.scale_size())?)?;
        let biases = match self {
            Encoding::Affine { .. } => scales,
            _ => 0,
        };
        Some((codes, scales, biases))
    }

    /// Bytes of one group's scale (and as many of its bias in the affine format).
    pub fn scale_size(self) -> usize {
        match self {
            Encoding::Float(_) => 0,
            Encoding::Affine { scale_type, .. } => scale_type.size(),
            Encoding::Mxfp4 | Encoding::Nvfp4 { .. } | Encoding::Mxfp8 => 1,
        }
    }
}

/// A weight matrix `[count, rows, cols]` that maps `cols` inputs to `rows` outputs; `count` is 1, or the experts of a stacked tensor.
///
/// Whoever builds one has checked [`Matrix::has_expected_lengths`], so that rows can be sliced without further checks.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Name of the module in the checkpoint, without `.weight`.
    pub name: String,
    /// Stacked matrices: the routed experts, or 1.
    pub count: usize,
    /// Outputs of one matrix.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Format of the elements.
    pub encoding: Encoding,
    /// Elements, row after row.
    pub codes: Bytes,
    /// Scales `[count, rows, cols / group_size]`; empty for plain numbers.
    pub scales: Bytes,
    /// Biases, laid out like the scales; empty but for the affine format.
    pub biases: Bytes,
}

impl Matrix {
    /// Whether `codes`, `scales` and `biases` have exactly the lengths that the shape and encoding ask for.
    pub fn has_expected_lengths(&self) -> bool {
        let lengths = self.encoding.expected_bytes(self.count, self.rows, self.cols);
        lengths == Some((self.codes.len(), self.scales.len(), self.biases.len()))
    }

    /// Bytes of one row's elements.
    pub fn row_bytes(&self) -> usize {
        self.cols * self.encoding.bits() / 8
    }

    /// Groups of one row; 0 for plain numbers.
    pub fn row_groups(&self) -> usize {
        self.encoding
            .group_size()
            .map_or(0, |group_size| self.cols / group_size)
    }

    /// Bytes of the elements, the scales and the biases of the whole matrix.
    pub fn size_bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.biases.len()
    }

    /// Elements of row `row` of matrix `index`, in their stored form.
    pub fn row_codes(&self, index: usize, row: usize) -> &[u8] {
        let size = self.row_bytes();
        let start = (index * self.rows + row) * size;
        &self.codes[start..start + size]
    }

    /// Scales of row `row` of matrix `index`, in their stored form.
    pub fn row_scales(&self, index: usize, row: usize) -> &[u8] {
        let size = self.row_groups() * self.encoding.scale_size();
        let start = (index * self.rows + row) * size;
        &self.scales[start..start + size]
    }

    /// Biases of row `row` of matrix `index`, in their stored form; empty but for the affine format.
    pub fn row_biases(&self, index: usize, row: usize) -> &[u8] {
        match self.encoding {
            Encoding::Affine { .. } => {
                let size = self.row_groups() * self.encoding.scale_size();
                let start = (index * self.rows + row) * size;
                &self.biases[start..start + size]
            }
            _ => &[],
        }
    }

    /// Writes row `row` of matrix `index` as f32 into `out` (`cols` numbers). The definition of every format; not fast.
    ///
    /// # Panics
    /// Where `out` is not `cols` long or the row does not exist.
    pub fn dequantize_row(&self, index: usize, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "{}: row length", self.name);
        let (codes, scales) = (self.row_codes(index, row), self.row_scales(index, row));
        match self.encoding {
            Encoding::Float(float) => {
                for (column, value) in out.iter_mut().enumerate() {
                    *value = float.read(codes, column);
                }
            }
            Encoding::Affine {
                bits,
                group_size,
                scale_type,
            } => {
                let biases = self.row_biases(index, row);
                for (column, value) in out.iter_mut().enumerate() {
                    let group = column / group_size;
                    let code = code_at(codes, column, bits as usize) as f32;
                    *value = scale_type.read(scales, group) * code + scale_type.read(biases, group);
                }
            }
            Encoding::Mxfp4 => {
                for (column, value) in out.iter_mut().enumerate() {
                    *value = e8m0(scales[column / 32]) * e2m1(code_at(codes, column, 4));
                }
            }
            Encoding::Nvfp4 { global_scale } => {
                for (column, value) in out.iter_mut().enumerate() {
                    *value = global_scale * e4m3(scales[column / 16]) * e2m1(code_at(codes, column, 4));
                }
            }
            Encoding::Mxfp8 => {
                for (column, value) in out.iter_mut().enumerate() {
                    *value = e8m0(scales[column / 32]) * e4m3(codes[column]);
                }
            }
        }
    }
}

/// Code `index` of a row whose codes are `bits` wide (at most 8, so a code spans at most two bytes).
pub fn code_at(row: &[u8], index: usize, bits: usize) -> u8 {
    let (byte, shift) = (index * bits / 8, index * bits % 8);
    let low = u16::from(row[byte]);
    let high = if shift + bits > 8 { u16::from(row[byte + 1]) } else { 0 };
    (((low | high << 8) >> shift) & ((1 << bits) - 1)) as u8
}

/// Value of a 4-bit E2M1 code: sign, two bits of exponent, one of mantissa.
pub fn e2m1(code: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 != 0 { -magnitude } else { magnitude }
}

/// Value of an E4M3 byte (bias 7, no infinities, NaN at 0x7f and 0xff).
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Value of an E8M0 byte: a power of two.
pub fn e8m0(code: u8) -> f32 {
    2f32.powi(i32::from(code) - 127)
}
