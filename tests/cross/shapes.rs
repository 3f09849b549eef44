//! Nested types around a leaf type, and random arrays of them with nulls and empties at every level.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields};

use crate::generate::{Random, array};

/// How a column nests its leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    Flat,
    Struct,
    Group,
    List,
    LargeList,
    FixedSizeList,
    Map,
    ListOfStructOfList,
    ListOfList,
    ListOfFixedSizeList,
    FixedSizeListOfList,
    MapOfList,
    StructOfMap,
    ListOfMapOfStruct,
    Deep,
    Deepest,
}

impl Shape {
    pub const ALL: &[Self] = &[
        Self::Flat,
        Self::Struct,
        Self::Group,
        Self::List,
        Self::LargeList,
        Self::FixedSizeList,
        Self::Map,
        Self::ListOfStructOfList,
        Self::ListOfList,
        Self::ListOfFixedSizeList,
        Self::FixedSizeListOfList,
        Self::MapOfList,
        Self::StructOfMap,
        Self::ListOfMapOfStruct,
        Self::Deep,
        Self::Deepest,
    ];

    /// The Arrow type of this shape around `leaf`, each level required or optional by chance.
    pub fn around(self, random: &mut Random, leaf: &DataType) -> DataType {
        let leaf = || leaf.clone();
        match self {
            Self::Flat => leaf(),
            Self::Struct => structure(random, vec![leaf()]),
            Self::Group => {
                let inner = structure(random, vec![DataType::Int32, leaf()]);
                let items = list(random, leaf());
                structure(random, vec![leaf(), inner, items, DataType::Utf8])
            }
            Self::List => list(random, leaf()),
            Self::LargeList => DataType::LargeList(field(random, "item", leaf())),
            Self::FixedSizeList => fixed(random, leaf()),
            Self::Map => map(random, leaf()),
            Self::ListOfStructOfList => {
                let inner = list(random, leaf());
                let middle = structure(random, vec![leaf(), inner]);
                list(random, middle)
            }
            Self::ListOfList => {
                let inner = list(random, leaf());
                list(random, inner)
            }
            Self::ListOfFixedSizeList => {
                let inner = fixed(random, leaf());
                list(random, inner)
            }
            Self::FixedSizeListOfList => {
                let inner = list(random, leaf());
                fixed(random, inner)
            }
            Self::MapOfList => {
                let inner = list(random, leaf());
                map(random, inner)
            }
            Self::StructOfMap => {
                let inner = map(random, leaf());
                structure(random, vec![inner, leaf()])
            }
            Self::ListOfMapOfStruct => {
                let inner = list(random, leaf());
                let middle = structure(random, vec![inner]);
                let middle = map(random, middle);
                list(random, middle)
            }
            Self::Deep => {
                let depth = 4 + random.below(6);
                chain(random, leaf(), depth)
            }
            Self::Deepest => chain(random, leaf(), 32),
        }
    }
}

fn field(random: &mut Random, name: &str, data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new(name, data_type, random.below(3) > 0))
}

fn structure(random: &mut Random, children: Vec<DataType>) -> DataType {
    let fields = children.into_iter().enumerate().map(|(at, it)| field(random, &format!("f{at}"), it));
    DataType::Struct(fields.collect::<Vec<_>>().into())
}

fn list(random: &mut Random, item: DataType) -> DataType {
    DataType::List(field(random, "item", item))
}

fn fixed(random: &mut Random, item: DataType) -> DataType {
    let size = 1 + random.below(4) as i32;
    DataType::FixedSizeList(field(random, "item", item), size)
}

fn map(random: &mut Random, value: DataType) -> DataType {
    let key = if random.below(2) == 0 { DataType::Utf8 } else { DataType::Int64 };
    let fields = vec![Arc::new(Field::new("key", key, false)), field(random, "value", value)];
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(fields.into()), false)), false)
}

/// Structs and lists in turn, by chance.
fn chain(random: &mut Random, leaf: DataType, depth: u64) -> DataType {
    (0..depth).fold(leaf, |inner, _| match random.below(3) {
        0 => structure(random, vec![inner]),
        1 => DataType::LargeList(field(random, "item", inner)),
        _ => list(random, inner),
    })
}

/// What values are like.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    /// Per cent of places that are null, at each level that may be.
    pub nulls: u64,
    /// Per cent of lists without items.
    pub empties: u64,
    /// How many different ones there are of leaves.
    pub different: u64,
}

/// A column of random values.
pub fn column(random: &mut Random, data_type: &DataType, nullable: bool, rows: usize, values: Values) -> ArrayRef {
    // The deeper, the shorter: a list of lists of lists of four each outgrows the test.
    let longest = match depth(data_type) {
        0..=2 => 4,
        3..=5 => 2,
        _ => 1,
    };
    Maker { random, values, longest }.make(data_type, nullable, rows)
}

fn depth(data_type: &DataType) -> usize {
    match data_type {
        DataType::List(it) | DataType::LargeList(it) | DataType::FixedSizeList(it, _) | DataType::Map(it, _) => {
            1 + depth(it.data_type())
        }
        DataType::Struct(fields) => fields.iter().map(|it| depth(it.data_type())).max().unwrap_or(0),
        _ => 0,
    }
}

struct Maker<'a> {
    random: &'a mut Random,
    values: Values,
    longest: u64,
}

impl Maker<'_> {
    fn make(&mut self, data_type: &DataType, nullable: bool, rows: usize) -> ArrayRef {
        match data_type {
            DataType::Struct(fields) => {
                let children = fields.iter().map(|it| self.make(it.data_type(), it.is_nullable(), rows)).collect();
                Arc::new(StructArray::new(fields.clone(), children, self.validity(nullable, rows)))
            }
            DataType::List(item) => {
                let (offsets, validity, places) = self.lists(nullable, rows);
                let child = self.make(item.data_type(), item.is_nullable(), places);
                Arc::new(ListArray::new(item.clone(), OffsetBuffer::from_lengths(offsets), child, validity))
            }
            DataType::LargeList(item) => {
                let (offsets, validity, places) = self.lists(nullable, rows);
                let child = self.make(item.data_type(), item.is_nullable(), places);
                Arc::new(LargeListArray::new(item.clone(), OffsetBuffer::from_lengths(offsets), child, validity))
            }
            DataType::FixedSizeList(item, size) => {
                let validity = self.validity(nullable, rows);
                let child = self.make(item.data_type(), item.is_nullable(), rows * *size as usize);
                Arc::new(FixedSizeListArray::new(item.clone(), *size, child, validity))
            }
            DataType::Map(entries, ordered) => {
                let (offsets, validity, places) = self.lists(nullable, rows);
                let DataType::Struct(fields) = entries.data_type() else { panic!("{data_type}") };
                let children: Vec<ArrayRef> =
                    fields.iter().map(|it| self.make(it.data_type(), it.is_nullable(), places)).collect();
                let child = StructArray::new(Fields::clone(fields), children, None);
                let offsets = OffsetBuffer::from_lengths(offsets);
                Arc::new(MapArray::new(entries.clone(), offsets, child, validity, *ordered))
            }
            leaf => {
                let nulls = if nullable { self.values.nulls } else { 0 };
                array(self.random, leaf, rows, nulls, self.values.different)
            }
        }
    }

    fn validity(&mut self, nullable: bool, rows: usize) -> Option<NullBuffer> {
        let nulls = self.values.nulls;
        (nullable && nulls > 0).then(|| (0..rows).map(|_| self.random.below(100) >= nulls).collect::<Vec<_>>().into())
    }

    /// Lengths, validity and the number of items. Some null lists have items: no reader may see them.
    fn lists(&mut self, nullable: bool, rows: usize) -> (Vec<usize>, Option<NullBuffer>, usize) {
        let validity = self.validity(nullable, rows);
        let length = |random: &mut Random| match random.below(100) < self.values.empties {
            true => 0,
            false => 1 + random.below(self.longest) as usize,
        };
        let lengths: Vec<usize> = (0..rows).map(|_| length(self.random)).collect();
        let places = lengths.iter().sum();
        (lengths, validity, places)
    }
}
