//! Named switches, one for each optimization whose gain is to be measured. All are on by default, and none changes what is computed
//! beyond rounding.

use crate::error::GpuError;

/// What a switch makes faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Prefill.
    Prefill,
    /// Decode.
    Decode,
    /// Prefill and decode.
    Both,
}

/// Where a switch is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ablation {
    /// The switch's name.
    pub name: &'static str,
    /// What it makes faster.
    pub phase: Phase,
    /// Context lengths in tokens at which its gain is told.
    pub contexts: &'static [usize],
}

macro_rules! switches {
    ($($field:ident $name:literal $phase:ident $contexts:tt $text:literal,)*) => {
        /// Which optimizations are in use.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Switches {
            $(#[doc = $text] pub $field: bool,)*
        }

        impl Default for Switches {
            fn default() -> Self {
                Switches { $($field: true,)* }
            }
        }

        impl Switches {
            /// Name and meaning of every switch.
            pub const ALL: &'static [(&'static str, &'static str)] = &[$(($name, $text),)*];

            /// Where every switch is measured.
            pub const ABLATIONS: &'static [Ablation] = &[$(Ablation {
                name: $name,
                phase: Phase::$phase,
                contexts: &$contexts,
            },)*];

            /// Turns the switch `name` off.
            ///
            /// # Errors
            /// [`GpuError::UnknownSwitch`]
            pub fn without(mut self, name: &str) -> Result<Switches, GpuError> {
                match name {
                    $($name => self.$field = false,)*
                    _ => {
                        let known = Self::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                        return Err(GpuError::UnknownSwitch { name: name.into(), known });
                    }
                }
                Ok(self)
            }
        }
    };
}

switches! {
    fused_dequant "fused-dequant" Prefill [512] "prefill: weights are expanded inside the products, not by a pass of their own",
    gpu_routing "gpu-routing" Prefill [512] "prefill: experts are chosen, counted and sorted on the GPU, not by the host",
    wide_tiles "wide-tiles" Prefill [2048] "prefill: expert tiles of 32 and more rows where the load fills them, not always 16",
    register_scan "register-scan" Prefill [2048] "prefill: the Gated DeltaNet state stays in registers for the whole chunk",
    coalesced_kv "coalesced-kv" Decode [3840] "decode: a lane reads neighbouring dimensions of a key in one load",
    gqa_packing "gqa-packing" Decode [32_768] "decode: four query heads share one read of their KV head",
    fixed_block_attention "fixed-block-attention" Decode [32_768, 65_536, 131_072] "decode: from 32,768 tokens on, attention is split into blocks of a fixed number of keys",
    fused_norm "fused-norm" Decode [3840] "decode: RMSNorm is folded into the products that take its output",
    merged_projections "merged-projections" Both [3840] "projections that read the same input share a dispatch",
    fused_top_k "fused-top-k" Decode [3840] "decode: experts are chosen inside the dispatch that uses them",
    fused_swiglu "fused-swiglu" Both [3840] "silu(gate) * up is computed where gate and up are",
    fused_combine "fused-combine" Decode [3840] "decode: the experts' weighted sum is computed by their down projections",
    fused_delta "fused-delta" Decode [3840] "decode: convolution, recurrence and gated norm are one dispatch",
    token_hand_off "token-hand-off" Decode [3840] "decode: the next token is chosen on the GPU, and two passes are in flight",
    sparse_barriers "sparse-barriers" Both [3840] "barriers stand only where data flows",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_can_be_turned_off() {
        for (name, _) in Switches::ALL {
            assert_ne!(
                Switches::default().without(name).unwrap(),
                Switches::default(),
                "{name}"
            );
        }
        assert!(
            Switches::default()
                .without("speed")
                .unwrap_err()
                .to_string()
                .contains("gqa-packing")
        );
    }
}
