//! Sampling fields that chat completions, completions and responses share, and their limits.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use crate::error::ApiError;
use crate::text_or_list::{TextOrList, text_or_list};

/// Most stop strings in a request.
const MAX_STOPS: usize = 16;

/// Most choices of one request.
const MAX_CHOICES: u32 = 128;

/// How to choose tokens; what is absent comes from the checkpoint's `generation_config.json`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct SamplingFields {
    /// Divisor of the logits; 0 is greedy.
    #[serde(default)]
    pub temperature: Option<f32>,
    /// Probability mass that stays.
    #[serde(default)]
    pub top_p: Option<f32>,
    /// Most likely tokens that stay; 0 or -1 for all (extension).
    #[serde(default)]
    pub top_k: Option<i64>,
    /// Least probability that stays, relative to the most likely token's (extension).
    #[serde(default)]
    pub min_p: Option<f32>,
    /// Subtracted from logits of tokens seen before.
    #[serde(default)]
    pub presence_penalty: Option<f32>,
    /// Subtracted from logits of tokens for each time that they were seen.
    #[serde(default)]
    pub frequency_penalty: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens seen before (extension).
    #[serde(default)]
    pub repetition_penalty: Option<f32>,
    /// Makes a run repeatable.
    #[serde(default)]
    pub seed: Option<i64>,
    /// Added to the logits of tokens.
    #[serde(default)]
    pub logit_bias: Option<LogitBias>,
    /// Strings that end the reply and are left out of it.
    #[serde(default)]
    pub stop: Option<StopStrings>,
    /// Replies to make.
    #[serde(default)]
    pub n: Option<u32>,
}

impl SamplingFields {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), ApiError> {
        in_range("temperature", self.temperature, 0.0, 2.0)?;
        in_range("top_p", self.top_p, 0.0, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        if let Some(penalty) = self.repetition_penalty
            && !(penalty > 0.0 && penalty <= 10.0)
        {
            return Err(ApiError::invalid(
                "repetition_penalty",
                format!("must be above 0 and at most 10, found {penalty}"),
            ));
        }
        if let Some(top_k) = self.top_k
            && top_k < -1
        {
            return Err(ApiError::invalid(
                "top_k",
                format!("must be at least 0, or -1 for all tokens, found {top_k}"),
            ));
        }
        if let Some(n) = self.n
            && !(1..=MAX_CHOICES).contains(&n)
        {
            return Err(ApiError::invalid(
                "n",
                format!("must be between 1 and {MAX_CHOICES}, found {n}"),
            ));
        }
        if let Some(StopStrings(stops)) = &self.stop {
            if stops.len() > MAX_STOPS {
                return Err(ApiError::invalid(
                    "stop",
                    format!("at most {MAX_STOPS} strings, found {}", stops.len()),
                ));
            }
            if stops.iter().any(String::is_empty) {
                return Err(ApiError::invalid("stop", "must not hold an empty string"));
            }
        }
        if let Some(LogitBias(biases)) = &self.logit_bias {
            for (token, bias) in biases {
                if !(-100.0..=100.0).contains(bias) {
                    return Err(ApiError::invalid(
                        format!("logit_bias.{token}"),
                        format!("must be between -100 and 100, found {bias}"),
                    ));
                }
            }
        }
        Ok(())
    }
}

fn in_range(field: &'static str, value: Option<f32>, low: f32, high: f32) -> Result<(), ApiError> {
    match value {
        Some(value) if !(low..=high).contains(&value) => Err(ApiError::invalid(
            field,
            format!("must be between {low} and {high}, found {value}"),
        )),
        _ => Ok(()),
    }
}

/// One stop string or a list of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StopStrings(pub Vec<String>);

impl<'de> Deserialize<'de> for StopStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(StopStrings(
            match text_or_list(deserializer, "a string or a list of strings")? {
                TextOrList::Text(stop) => vec![stop],
                TextOrList::List(stops) => stops,
            },
        ))
    }
}

/// Token ids, as JSON's object keys are text, and what is added to their logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogitBias(pub Vec<(u32, f32)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BiasVisitor;

        impl<'de> Visitor<'de> for BiasVisitor {
            type Value = LogitBias;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object from token ids to biases")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
                let mut biases = Vec::new();
                while let Some((key, bias)) = map.next_entry::<String, f32>()? {
                    let token = key
                        .parse()
                        .map_err(|_| de::Error::custom(format!("expected a token id as key, found {key:?}")))?;
                    biases.push((token, bias));
                }
                Ok(LogitBias(biases))
            }
        }

        deserializer.deserialize_map(BiasVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse_json;

    fn fault(json: &str) -> String {
        match parse_json::<SamplingFields>(json.as_bytes()).and_then(|fields| fields.validate()) {
            Err(ApiError::Invalid { param, .. }) => param.unwrap_or_default(),
            other => panic!("{json}: expected a 400, found {other:?}"),
        }
    }

    #[test]
    fn everything_may_be_absent_or_null() {
        let empty = parse_json::<SamplingFields>(b"{}").unwrap();
        assert_eq!(empty, SamplingFields::default());
        let nulls = br#"{"temperature": null, "stop": null, "logit_bias": null, "n": null, "seed": null}"#;
        assert_eq!(parse_json::<SamplingFields>(nulls).unwrap(), empty);
    }

    #[test]
    fn values_are_read() {
        let text = br#"{"temperature": 0, "stop": ["a", "b"], "logit_bias": {"5": -100, "7": 1.5}, "seed": -3}"#;
        let fields = parse_json::<SamplingFields>(text).unwrap();
        fields.validate().unwrap();
        assert_eq!(fields.stop, Some(StopStrings(vec!["a".into(), "b".into()])));
        assert_eq!(fields.logit_bias, Some(LogitBias(vec![(5, -100.0), (7, 1.5)])));
        assert_eq!(fields.seed, Some(-3));
    }

    #[test]
    fn out_of_range_and_wrong_types_name_the_field() {
        for (json, param) in [
            (r#"{"temperature": -0.1}"#, "temperature"),
            (r#"{"temperature": 2.1}"#, "temperature"),
            (r#"{"temperature": 1e39}"#, "temperature"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"top_p": 1.1}"#, "top_p"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"min_p": 2}"#, "min_p"),
            (r#"{"presence_penalty": 3}"#, "presence_penalty"),
            (r#"{"frequency_penalty": -3}"#, "frequency_penalty"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"n": 0}"#, "n"),
            (r#"{"n": 129}"#, "n"),
            (r#"{"n": -1}"#, "n"),
            (r#"{"stop": 5}"#, "stop"),
            (r#"{"stop": ["a", ""]}"#, "stop"),
            (r#"{"stop": ["a", 1]}"#, "stop[1]"),
            (r#"{"logit_bias": {"5": 101}}"#, "logit_bias.5"),
            (r#"{"logit_bias": {"x": 1}}"#, "logit_bias.x"),
        ] {
            let found = fault(json);
            assert!(
                found == param || (param == "logit_bias.x" && found.starts_with("logit_bias")),
                "{json}: {found}"
            );
        }
    }
}
