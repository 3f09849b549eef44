//! A top-level field as a tree: which structs and lists lie above each leaf, and at which levels.

use arrow::datatypes::DataType;
use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::Type;

/// A field without its type and names, which the Arrow schema has. Levels are Parquet's: see
/// [`abi.h`](crate::kernels::abi::Node), "Node".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// A leaf, by its index among the leaves.
    Leaf(usize),
    /// A struct.
    Struct {
        /// The definition level from which on it is there; `None` when it is never null by itself.
        def: Option<u32>,
        /// Its fields; at least one.
        children: Vec<Field>,
    },
    /// A list or, of structs of two fields, a map.
    List {
        /// How it knows where its elements are.
        kind: ListKind,
        /// Whether it may be null.
        nullable: bool,
        /// The definition level from which on it has an element. One less: it is empty.
        def: u32,
        /// The repetition level at which its elements repeat.
        rep: u32,
        /// Its elements.
        element: Box<Field>,
    },
}

/// Kinds of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Offsets of so many bytes, 4 or 8.
    Offsets(u32),
    /// Lists of so many elements each.
    Fixed(u32),
}

impl Field {
    /// The leaves, from left to right.
    pub fn leaves(&self) -> Vec<usize> {
        fn collect(field: &Field, leaves: &mut Vec<usize>) {
            match field {
                Field::Leaf(leaf) => leaves.push(*leaf),
                Field::Struct { children, .. } => children.iter().for_each(|child| collect(child, leaves)),
                Field::List { element, .. } => collect(element, leaves),
            }
        }
        let mut leaves = Vec::new();
        collect(self, &mut leaves);
        leaves
    }

    /// The field with the leaves for which `number` has one, under that number; `None` when no leaf is left.
    pub fn select(&self, number: &impl Fn(usize) -> Option<usize>) -> Option<Self> {
        Some(match self {
            Self::Leaf(leaf) => Self::Leaf(number(*leaf)?),
            Self::Struct { def, children } => {
                let children: Vec<_> = children.iter().filter_map(|child| child.select(number)).collect();
                if children.is_empty() {
                    return None;
                }
                Self::Struct { def: *def, children }
            }
            Self::List { kind, nullable, def, rep, element } => {
                let element = Box::new(element.select(number)?);
                Self::List { kind: *kind, nullable: *nullable, def: *def, rep: *rep, element }
            }
        })
    }
}

/// A top-level field of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Root {
    /// The tree, or why there is none.
    pub(super) field: Result<Field, &'static str>,
    /// The leaves below it, and of each the Arrow type where the tree tells.
    pub(super) leaves: Vec<Option<DataType>>,
}

/// The fields of `root`, a file's schema, to which arrow-rs gave the types `arrow`. Fields without leaves have none: arrow-rs drops
/// them.
///
/// Which groups are lists, and what a repeated field that is none becomes, follows arrow-rs
/// (`parquet/src/arrow/schema/complex.rs`) and so the format's LogicalTypes.md, "Lists" and "Maps", with its rules for
/// old files.
pub(super) fn roots<'a>(root: &Type, arrow: impl Iterator<Item = &'a DataType>) -> Vec<Root> {
    let mut next_leaf = 0;
    let fields = root.get_fields().iter().filter(|field| count_leaves(field) > 0);
    fields
        .zip(arrow)
        .map(|(field, data_type)| {
            let leaves = count_leaves(field);
            let mut visitor = Visitor { first_leaf: next_leaf, types: Vec::with_capacity(leaves) };
            let field = visitor.visit(field, data_type, Levels { def: 0, rep: 0 });
            next_leaf += leaves;
            let mut types: Vec<_> = visitor.types.into_iter().map(Some).collect();
            types.resize(leaves, None);
            Root { field, leaves: types }
        })
        .collect()
}

fn count_leaves(field: &Type) -> usize {
    if field.is_primitive() { 1 } else { field.get_fields().iter().map(|it| count_leaves(it)).sum() }
}

/// What the tree and the Arrow type do not agree on is left to arrow-rs.
const OTHER_FORM: &str = "a nested field of another form than its Arrow type";

/// Levels above a field.
#[derive(Debug, Clone, Copy)]
struct Levels {
    def: u32,
    rep: u32,
}

impl Levels {
    /// The levels of a field with this repetition.
    fn of(self, repetition: Repetition) -> Self {
        match repetition {
            Repetition::REQUIRED => self,
            Repetition::OPTIONAL => Self { def: self.def + 1, ..self },
            Repetition::REPEATED => Self { def: self.def + 1, rep: self.rep + 1 },
        }
    }
}

fn repetition(field: &Type) -> Repetition {
    let info = field.get_basic_info();
    if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED }
}

/// Whether a group is annotated as a list.
fn is_list(group: &Type) -> bool {
    let info = group.get_basic_info();
    match info.logical_type_ref() {
        Some(logical) => logical == &LogicalType::List,
        None => info.converted_type() == ConvertedType::LIST,
    }
}

/// The kind of a list, and the type of its elements.
fn list_type(data_type: &DataType) -> Result<(ListKind, &DataType), &'static str> {
    match data_type {
        DataType::List(element) | DataType::Map(element, _) => Ok((ListKind::Offsets(4), element.data_type())),
        DataType::LargeList(element) => Ok((ListKind::Offsets(8), element.data_type())),
        DataType::FixedSizeList(element, size) => {
            let size = u32::try_from(*size).map_err(|_| "fixed-size lists of negative size")?;
            Ok((ListKind::Fixed(size), element.data_type()))
        }
        DataType::ListView(_) | DataType::LargeListView(_) => Err("list views"),
        _ => Err(OTHER_FORM),
    }
}

struct Visitor {
    first_leaf: usize,
    types: Vec<DataType>,
}

type Visited = Result<Field, &'static str>;

impl Visitor {
    /// A field that has leaves.
    fn visit(&mut self, field: &Type, data_type: &DataType, above: Levels) -> Visited {
        if field.is_primitive() {
            return self.maybe_repeated(field, data_type, above, None, Self::leaf);
        }
        match field.get_basic_info().converted_type() {
            ConvertedType::LIST => self.list(field, data_type, above),
            ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => self.map(field, data_type, above),
            _ => self.maybe_repeated(field, data_type, above, None, Self::group),
        }
    }

    /// A primitive field or a struct; a repeated one is a list of them. `nullable`: of a repeated field, whether the group around it
    /// makes the list one that may be null.
    fn maybe_repeated(
        &mut self,
        field: &Type,
        data_type: &DataType,
        above: Levels,
        nullable: Option<bool>,
        visit: impl FnOnce(&mut Self, &Type, &DataType, Levels) -> Visited,
    ) -> Visited {
        let levels = above.of(repetition(field));
        if repetition(field) != Repetition::REPEATED {
            return visit(self, field, data_type, levels);
        }
        let (kind, element_type) = list_type(data_type)?;
        let element = Box::new(visit(self, field, element_type, levels)?);
        let Levels { def, rep } = levels;
        Ok(Field::List { kind, nullable: nullable.unwrap_or(false), def, rep, element })
    }

    fn leaf(&mut self, _: &Type, data_type: &DataType, _: Levels) -> Visited {
        let leaf = self.first_leaf + self.types.len();
        self.types.push(data_type.clone());
        Ok(Field::Leaf(leaf))
    }

    /// A struct whose own levels are `levels`.
    fn group(&mut self, group: &Type, data_type: &DataType, levels: Levels) -> Visited {
        let DataType::Struct(arrow) = data_type else { return Err(OTHER_FORM) };
        let fields: Vec<_> = group.get_fields().iter().filter(|it| count_leaves(it) > 0).collect();
        if fields.len() != arrow.len() || fields.is_empty() {
            return Err(OTHER_FORM);
        }
        let visit = |(field, arrow): (&_, &arrow::datatypes::FieldRef)| self.visit(field, arrow.data_type(), levels);
        let children = fields.into_iter().map(|it| &**it).zip(arrow).map(visit).collect::<Result<_, _>>()?;
        let def = (repetition(group) == Repetition::OPTIONAL).then_some(levels.def);
        Ok(Field::Struct { def, children })
    }

    fn list(&mut self, list: &Type, data_type: &DataType, above: Levels) -> Visited {
        let [repeated] = list.get_fields() else { return Err(OTHER_FORM) };
        let nullable = repetition(list) == Repetition::OPTIONAL;
        let inside = above.of(repetition(list));
        if repeated.is_primitive() {
            return self.maybe_repeated(repeated, data_type, inside, Some(nullable), Self::leaf);
        }
        let items = repeated.get_fields();
        let is_element = items.len() != 1
            || (!is_list(repeated)
                && repetition(&items[0]) != Repetition::REPEATED
                && (repeated.name() == "array" || repeated.name() == format!("{}_tuple", list.name())));
        if is_element {
            return self.maybe_repeated(repeated, data_type, inside, Some(nullable), Self::group);
        }
        let levels = inside.of(Repetition::REPEATED);
        let (kind, element_type) = list_type(data_type)?;
        let element = Box::new(self.visit(&items[0], element_type, levels)?);
        Ok(Field::List { kind, nullable, def: levels.def, rep: levels.rep, element })
    }

    fn map(&mut self, map: &Type, data_type: &DataType, above: Levels) -> Visited {
        let [entries] = map.get_fields() else { return Err(OTHER_FORM) };
        if entries.is_primitive() {
            return Err(OTHER_FORM);
        }
        // Keys without values are a list.
        if entries.get_fields().len() == 1 {
            return self.list(map, data_type, above);
        }
        let nullable = repetition(map) == Repetition::OPTIONAL;
        let levels = above.of(repetition(map)).of(Repetition::REPEATED);
        let (kind, entry_type) = list_type(data_type)?;
        let (DataType::Struct(arrow), [key, value]) = (entry_type, entries.get_fields()) else {
            return Err(OTHER_FORM);
        };
        if arrow.len() != 2 {
            return Err(OTHER_FORM);
        }
        let key = self.visit(key, arrow[0].data_type(), levels)?;
        let value = self.visit(value, arrow[1].data_type(), levels)?;
        let element = Box::new(Field::Struct { def: None, children: vec![key, value] });
        Ok(Field::List { kind, nullable, def: levels.def, rep: levels.rep, element })
    }
}
