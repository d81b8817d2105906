//! Fields that are a string or a list, as both APIs have many.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// What such a field holds.
pub enum TextOrList<T> {
    /// A string.
    Text(String),
    /// A list.
    List(Vec<T>),
}

/// Reads a string or a list; `expected` is what an error says that it should have been. Serde's untagged enums would lose which item and field
/// was at fault.
///
/// # Errors
/// Where there is neither, or an item is wrong.
pub fn text_or_list<'de, D, T>(deserializer: D, expected: &'static str) -> Result<TextOrList<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Either<T> {
        expected: &'static str,
        item: PhantomData<T>,
    }

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
        type Value = TextOrList<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.expected)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<TextOrList<T>, E> {
            Ok(TextOrList::Text(text.to_owned()))
        }

        fn visit_string<E: de::Error>(self, text: String) -> Result<TextOrList<T>, E> {
            Ok(TextOrList::Text(text))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<TextOrList<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = sequence.next_element()? {
                list.push(item);
            }
            Ok(TextOrList::List(list))
        }
    }

    deserializer.deserialize_any(Either {
        expected,
        item: PhantomData,
    })
}
