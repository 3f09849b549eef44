//! Columns below lists and structs: launches the kernels of nested.cu, and between them sizes the arrays.
//!
//! Every list and every struct that may be null is a node. The first column below a node writes its offsets and validity;
//! the other columns there must only agree on how many slots it has.

use arrow::datatypes::DataType;

use super::output::{self, Output};
use super::pages::Work;
use super::zero::Zeros;
use super::{Request, Table, blocks};
use crate::batch::{DeviceArray, Memory};
use crate::device::staging::{Staged, Staging};
use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Place, Result};
use crate::footer::{Field, ListKind};
use crate::kernels::Kernel;
use crate::kernels::abi::{self, NestedLevelsArgs, PageRowsArgs, PageState, ShapeArgs, SlotCountsArgs, StrikeOutArgs};

/// A top-level field of the batch, with its nodes numbered.
#[derive(Debug)]
enum Branch {
    Leaf(usize),
    Struct { node: Option<usize>, children: Vec<Branch> },
    List { node: usize, element: Box<Branch> },
}

/// A list or a struct that may be null.
#[derive(Debug)]
struct Node {
    /// The column that writes it.
    owner: usize,
    /// Among the lists or among the structs of its owner.
    at: usize,
    nullable: bool,
    shape: abi::Node,
}

/// The nodes above a column, by number.
#[derive(Debug, Default, Clone)]
struct Path {
    lists: Vec<usize>,
    /// Structs that this column writes.
    structs: Vec<usize>,
    /// Whether a fixed-size list is among the lists.
    fixed_size: bool,
    /// The definition level of what lies above the column: from there on, only the column itself can be null.
    def: u32,
}

impl Path {
    /// Counts that the first kernel makes of a page.
    fn counts(&self) -> usize {
        2 * self.lists.len() + 1 + self.structs.len() + 1
    }
}

/// What lies above the columns of a batch.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    branches: Vec<Branch>,
    nodes: Vec<Node>,
    /// By column.
    paths: Vec<Path>,
}

impl Shapes {
    pub(super) fn new(request: &Request<'_>) -> Result<Self> {
        let mut shapes = Self { paths: vec![Path::default(); request.leaves.len()], ..Self::default() };
        let mut next = 0;
        for (field, _) in request.fields {
            let branch = shapes.grow(field, &mut next, &[], 0)?;
            shapes.branches.push(branch);
        }
        if next != request.leaves.len() {
            return Err(Error::Argument("a field for each leaf".into()));
        }
        Ok(shapes)
    }

    /// Numbers the nodes of `field`, above which `lists` lie, the last of what lies there with definition level `def`. `next` is the column that comes next.
    fn grow(&mut self, field: &Field, next: &mut usize, lists: &[usize], def: u32) -> Result<Branch> {
        Ok(match field {
            Field::Leaf(leaf) => {
                if leaf != next || *leaf >= self.paths.len() {
                    return Err(Error::Argument(format!("leaf {leaf} in the place of leaf {next}")));
                }
                self.paths[*leaf].lists = lists.to_vec();
                self.paths[*leaf].fixed_size = lists.iter().any(|list| self.nodes[*list].shape.is_fixed_size != 0);
                self.paths[*leaf].def = def;
                *next += 1;
                Branch::Leaf(*leaf)
            }
            Field::Struct { def: own, children } => {
                let owner = *next;
                let node = own.map(|def| {
                    let shape = abi::Node { def, slot_class: lists.len() as u32, ..abi::Node::default() };
                    self.nodes.push(Node { owner, at: 0, nullable: true, shape });
                    self.nodes.len() - 1
                });
                let children = children
                    .iter()
                    .map(|child| self.grow(child, next, lists, own.unwrap_or(def)))
                    .collect::<Result<Vec<_>>>()?;
                if let (Some(node), Some(path)) = (node, self.paths.get_mut(owner)) {
                    path.structs.push(node);
                    self.nodes[node].at = path.structs.len() - 1;
                }
                Branch::Struct { node, children }
            }
            Field::List { kind, nullable, def, rep, element } => {
                let (size, offset_width) = match *kind {
                    ListKind::Fixed(size) => (size, 0),
                    ListKind::Offsets(width) => (0, width),
                };
                let shape = abi::Node {
                    def: *def,
                    rep: *rep,
                    size,
                    offset_width,
                    slot_class: lists.len() as u32,
                    is_fixed_size: matches!(kind, ListKind::Fixed(_)).into(),
                    ..abi::Node::default()
                };
                self.nodes.push(Node { owner: *next, at: lists.len(), nullable: *nullable, shape });
                let node = self.nodes.len() - 1;
                let lists: Vec<usize> = lists.iter().copied().chain([node]).collect();
                let element = Box::new(self.grow(element, next, &lists, *def)?);
                Branch::List { node, element }
            }
        })
    }

    /// Leaves of the fields. What comes behind them are the entries of dictionaries.
    pub(super) fn leaves(&self) -> usize {
        self.paths.len()
    }

    /// Whether a column needs more than validity bits from its levels.
    pub(super) fn is_shaped(&self, request: &Request<'_>, column: usize) -> bool {
        let path = &self.paths[column];
        let levels = request.leaves[column].max_def > 1 || !path.lists.is_empty() || !path.structs.is_empty();
        levels || request.selected.is_some()
    }

    /// Whether slots of the column can be null.
    pub(super) fn has_nulls(&self, request: &Request<'_>, column: usize) -> bool {
        // The entries of a dictionary have no path.
        let Some(path) = self.paths.get(column) else { return false };
        let threshold = path.lists.last().map_or(0, |list| self.nodes[*list].shape.def);
        request.leaves[column].max_def > threshold || path.fixed_size
    }

    /// The nodes for the kernels, a column after the other. Enters where those of each column start.
    pub(super) fn describe(&self, columns: &mut [abi::Column]) -> Vec<abi::Node> {
        let mut nodes = Vec::new();
        for (at, (column, path)) in columns.iter_mut().zip(&self.paths).enumerate() {
            column.first_node = nodes.len() as u32;
            column.lists = path.lists.len() as u32;
            column.structs = path.structs.len() as u32;
            for &node in path.lists.iter().chain(&path.structs) {
                let Node { owner, shape, .. } = &self.nodes[node];
                // The kernels write what has an address.
                let (offsets, validity) = if *owner == at { (shape.offsets, shape.validity) } else { (0, 0) };
                nodes.push(abi::Node { offsets, validity, ..*shape });
            }
        }
        nodes
    }

    /// Gives the shaped pages room for their levels and counts.
    pub(super) fn place(&self, stream: &Stream, request: &Request<'_>, work: &mut Work) -> Result<Levels> {
        // At most 2^28 pages of less than 2^31 levels.
        let mut level_bytes = 0u64;
        let mut count_bytes = 0u64;
        for &index in &work.shaped {
            let page = &mut work.pages[index as usize];
            let column = page.column as usize;
            page.counts = count_bytes; // offsets, until the memory is there
            page.levels = level_bytes;
            count_bytes += (self.paths[column].counts() * size_of::<u64>()) as u64;
            let bytes = u64::from(page.num_values).next_multiple_of(8);
            let repeats = request.leaves[column].max_rep > 0 || request.selected.is_some();
            level_bytes += if repeats { 2 * bytes } else { bytes };
        }
        let levels = stream.gpu().alloc(level_bytes, stream, "levels of nested columns")?;
        let counts = stream.gpu().alloc(count_bytes, stream, "slot counts of nested columns")?;
        stream.fill(&counts, 0, count_bytes as usize, 0)?;
        for &index in &work.shaped {
            let page = &mut work.pages[index as usize];
            page.counts += counts.address();
            page.levels += levels.address();
        }
        Ok(Levels { _levels: levels, counts })
    }

    /// Adds up the counts that the kernels made, `counts`, and enters what follows into the nodes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a chunk has another number of rows than its row group, or columns of one field do not agree;
    /// [`Error::Unsupported`] when there is more than offsets can tell.
    pub(super) fn size(
        &mut self,
        request: &Request<'_>,
        work: &Work,
        states: &[PageState],
        counts: &[u64],
    ) -> Result<Sizes> {
        let mut totals: Vec<Vec<u64>> = self.paths.iter().map(|path| vec![0; path.counts()]).collect();
        let mut sizes = Sizes::default();
        let mut counts = counts.iter();
        let mut pages = work.shaped.iter().peekable();
        for (chunk, &column) in request.columns.iter().enumerate() {
            let range = request.table.pages(chunk);
            let total = &mut totals[column];
            let mut rows = 0u64;
            let classes = self.paths[column].lists.len() + 1;
            while let Some(&index) = pages.next_if(|index| range.contains(&(**index as usize))) {
                sizes.bases.extend_from_slice(&total[..classes]);
                sizes.first_bases.push((sizes.bases.len() - classes) as u64);
                rows += u64::from(states[index as usize].rows);
                for (at, total) in total.iter_mut().enumerate() {
                    let count = counts.next().copied().unwrap_or(0);
                    // The kernels count the slots of a page in 32 bits.
                    if at < classes && count > i32::MAX as u64 {
                        return Err(too_many(request.table.place(index as usize)));
                    }
                    *total = total.saturating_add(count);
                }
            }
            let expected = request.table.chunks()[chunk].num_rows;
            if work.is_shaped[column] && rows != expected {
                let message = format!("a column chunk of {rows} rows in place of {expected}");
                let chunk = &request.table.chunks()[chunk];
                return Err(Error::corrupt(Place::chunk(chunk.row_group, &*chunk.column), message));
            }
        }
        for node in &mut self.nodes {
            let path = &self.paths[node.owner];
            let total = &totals[node.owner];
            let class = node.shape.slot_class as usize;
            let is_list = node.shape.rep > 0;
            node.shape.slots = total[class];
            node.shape.children = if is_list { total[class + 1] } else { 0 };
            let at = if is_list { node.at } else { path.lists.len() + node.at };
            sizes.valid.push(total[path.lists.len() + 1 + at]);
            let place = || Place { column: Some(request.leaves[node.owner].path.clone()), ..Place::default() };
            if is_list && node.shape.is_fixed_size == 0 {
                let most = if node.shape.offset_width == 4 { i32::MAX as u64 } else { i64::MAX as u64 };
                if node.shape.children > most {
                    return Err(too_many(place()));
                }
            }
            let size = u64::from(node.shape.size);
            if node.shape.is_fixed_size != 0 && node.shape.slots.checked_mul(size) != Some(node.shape.children) {
                return Err(Error::corrupt(place(), abi::fault_message(abi::fault::FIXED_SIZE_LIST)));
            }
        }
        sizes.slots = totals.iter().zip(&self.paths).map(|(total, path)| total[path.lists.len()]).collect();
        sizes.leaf_valid = totals.iter().map(|total| total.last().copied().unwrap_or(0)).collect();
        Ok(sizes)
    }

    /// Allocates what nodes write.
    pub(super) fn alloc(&mut self, stream: &Stream, zeros: &mut Zeros) -> Result<Vec<NodeOutput>> {
        let mut outputs = Vec::with_capacity(self.nodes.len());
        for node in &mut self.nodes {
            let mut output = NodeOutput::default();
            let shape = &mut node.shape;
            if node.nullable {
                let validity = output::alloc(stream, Some(shape.slots.div_ceil(8)), "validity")?;
                zeros.push(&validity, 0);
                shape.validity = validity.address();
                output.validity = Some(validity);
            }
            if shape.offset_width > 0 {
                let width = u64::from(shape.offset_width);
                let bytes = shape.slots.checked_add(1).and_then(|it| it.checked_mul(width));
                let offsets = output::alloc(stream, bytes, "offsets of lists")?;
                zeros.push(&offsets, if shape.slots == 0 { 0 } else { bytes.unwrap_or(0) });
                shape.offsets = offsets.address();
                output.offsets = Some(offsets);
            }
            outputs.push(output);
        }
        Ok(outputs)
    }

    /// Puts the arrays of the fields together from those of the leaves, by column.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when columns of one field do not agree on how many slots there are.
    pub(super) fn assemble(
        self,
        request: &Request<'_>,
        leaves: Vec<Leaf>,
        mut nodes: Vec<NodeOutput>,
        sizes: &Sizes,
    ) -> Result<Vec<DeviceArray>> {
        let mut leaves: Vec<Option<Leaf>> = leaves.into_iter().map(Some).collect();
        let mut arrays = Vec::with_capacity(self.branches.len());
        for (branch, (field, data_type)) in self.branches.iter().zip(request.fields) {
            let array = self.array(request, branch, data_type, &mut leaves, &mut nodes, sizes)?;
            if array.len as u64 != request.rows {
                let leaf = field.leaves().first().map(|leaf| request.leaves[*leaf].path.clone());
                let message = format!("a field of {} rows in a batch of {}", array.len, request.rows);
                return Err(Error::corrupt(Place { column: leaf, ..Place::default() }, message));
            }
            arrays.push(array);
        }
        Ok(arrays)
    }

    fn array(
        &self,
        request: &Request<'_>,
        branch: &Branch,
        data_type: &DataType,
        leaves: &mut [Option<Leaf>],
        nodes: &mut [NodeOutput],
        sizes: &Sizes,
    ) -> Result<DeviceArray> {
        let other = || Error::Argument(format!("a field of another form than its type, {data_type}"));
        let (node, children) = match branch {
            Branch::Leaf(leaf) => {
                let Leaf { output, slots, nulls, children } = leaves[*leaf].take().ok_or_else(other)?;
                // A required leaf is null where a struct or fixed-size list above it is, which that one tells.
                let optional = request.leaves[*leaf].max_def > self.paths[*leaf].def;
                let nulls = if optional { nulls } else { 0 };
                return Ok(DeviceArray { children, ..output.into_array(data_type.clone(), slots, nulls)? });
            }
            Branch::Struct { node, children } => {
                let DataType::Struct(fields) = data_type else { return Err(other()) };
                if fields.len() != children.len() {
                    return Err(other());
                }
                let child = |(child, field): (&_, &arrow::datatypes::FieldRef)| {
                    self.array(request, child, field.data_type(), leaves, nodes, sizes)
                };
                (*node, children.iter().zip(fields).map(child).collect::<Result<Vec<_>>>()?)
            }
            Branch::List { node, element } => {
                let element_type = match data_type {
                    DataType::List(field)
                    | DataType::LargeList(field)
                    | DataType::FixedSizeList(field, _)
                    | DataType::Map(field, _) => field.data_type(),
                    _ => return Err(other()),
                };
                (Some(*node), vec![self.array(request, element, element_type, leaves, nodes, sizes)?])
            }
        };
        let shape = node.map(|node| self.nodes[node].shape);
        let is_list = shape.is_some_and(|shape| shape.rep > 0);
        let first = children.first().map_or(0, |child| child.len);
        let disagree = || {
            let column = node.map(|node| format!("a column below {data_type}, node {node}"));
            Error::corrupt(Place { column, ..Place::default() }, "columns of one field differ in length")
        };
        if children.iter().any(|child| child.len != first) {
            return Err(disagree());
        }
        let len = match shape {
            Some(shape) if is_list && shape.children != first as u64 => return Err(disagree()),
            Some(shape) if !is_list && shape.slots != first as u64 => return Err(disagree()),
            Some(shape) => output::count(shape.slots)?,
            None => first,
        };
        let output = node.map(|node| std::mem::take(&mut nodes[node])).unwrap_or_default();
        let null_count = match node {
            Some(node) if self.nodes[node].nullable => len.saturating_sub(output::count(sizes.valid[node])?),
            _ => 0,
        };
        Ok(DeviceArray {
            data_type: data_type.clone(),
            len,
            null_count,
            validity: output.validity.filter(|_| null_count > 0).map(Memory::Device),
            buffers: output.offsets.into_iter().map(Memory::Device).collect(),
            children,
        })
    }
}

/// A leaf's array, not yet in its place.
pub(super) struct Leaf {
    pub(super) output: Output,
    pub(super) slots: u64,
    pub(super) nulls: u64,
    /// The entries of a dictionary.
    pub(super) children: Vec<DeviceArray>,
}

/// Buffers of a node.
#[derive(Debug, Default)]
pub(super) struct NodeOutput {
    validity: Option<DeviceBuffer>,
    offsets: Option<DeviceBuffer>,
}

/// Memory of the level bytes, kept until the last kernel, and of the counts.
#[derive(Debug)]
pub(super) struct Levels {
    _levels: DeviceBuffer,
    counts: DeviceBuffer,
}

impl Levels {
    /// The counts, a shaped page after the other. Waits through `wait`.
    pub(super) fn read_counts(&self, stream: &Stream, wait: impl FnOnce() -> Result<()>) -> Result<Vec<u64>> {
        let mut host = stream.gpu().alloc_pinned(self.counts.len() as usize)?;
        if !host.is_empty() {
            // SAFETY: the host copy is not touched before the wait below, and freed after it.
            unsafe { stream.copy_to_host(&mut host, &self.counts, 0)? };
        }
        // Also after a failure, since the copy may still run: then the device is lost, and nothing runs any more.
        wait()?;
        Ok(host.chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned).collect())
    }
}

/// What the counts come to.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    /// Slots of each column.
    pub(super) slots: Vec<u64>,
    /// Valid slots of each shaped column.
    pub(super) leaf_valid: Vec<u64>,
    /// Valid slots of each node.
    valid: Vec<u64>,
    /// Slots before each shaped page, by class, a page after the other; and where each page's start.
    bases: Vec<u64>,
    first_bases: Vec<u64>,
}

fn too_many(place: Place) -> Error {
    Error::unsupported(place, "more elements in one batch than offsets can tell: read fewer rows at a time")
}

/// Queues what makes the counts of the shaped pages, `items`. `nodes`: their address; `selected`: that of the bits and the runs.
pub(super) fn count(
    stream: &Stream,
    request: &Request<'_>,
    work: &Work,
    table: &Table,
    nodes: u64,
    items: u64,
    selected: Option<(u64, u64)>,
) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    let blocks = blocks(work.shaped.len())?;
    let count = blocks.into();
    // SAFETY: the table and the lists hold `count` pages and live until the stream has been synchronised.
    unsafe { stream.launch(blocks, &NestedLevelsArgs { pages, columns, states, items, fault, count })? };
    if let (Some((selected, runs)), Some(rows)) = (selected, request.selected) {
        let run_count = work.runs.len() as u64;
        let run_blocks = super::blocks(work.runs.len().div_ceil(Kernel::PageRows.threads() as usize))?;
        let rows = rows.rows();
        // SAFETY: as above, and the runs lie in the list.
        unsafe {
            stream.launch(run_blocks, &PageRowsArgs { states, items, runs, count: run_count })?;
            stream.launch(blocks, &StrikeOutArgs { pages, columns, states, items, selected, rows, count })?;
        }
    }
    // SAFETY: as above.
    unsafe { stream.launch(blocks, &SlotCountsArgs { pages, columns, nodes, states, items, count }) }
}

/// Where the slots before each page are.
struct Bases {
    all: u64,
    first: u64,
}

fn launch_shape(stream: &Stream, table: &Table, nodes: u64, items: u64, bases: &Bases, count: u32) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    let (bases, first_bases) = (bases.all, bases.first);
    let args = ShapeArgs { pages, columns, nodes, states, items, bases, first_bases, fault, count: count.into() };
    // SAFETY: as in `count`.
    unsafe { stream.launch(count, &args) }
}

/// Allocates what the nodes write, and queues it. The columns have their arrays.
pub(super) fn shape(
    stream: &Stream,
    shapes: &mut Shapes,
    work: &Work,
    columns: &mut [abi::Column],
    sizes: &Sizes,
    mut zeros: Zeros,
    table: &mut Table,
) -> Result<(Vec<NodeOutput>, Staged)> {
    let outputs = shapes.alloc(stream, &mut zeros)?;
    let mut staging = Staging::default();
    let nodes = staging.push(&shapes.describe(columns));
    let columns = staging.push(columns);
    let items = staging.push(&work.shaped);
    let bases = staging.push(&sizes.bases);
    let first_bases = staging.push(&sizes.first_bases);
    let zero_items = zeros.stage(&mut staging);
    let staged = staging.upload(stream, "nodes of nested columns")?;
    table.columns = staged.address(columns);
    zeros.launch(stream, staged.address(zero_items))?;
    let bases = Bases { all: staged.address(bases), first: staged.address(first_bases) };
    launch_shape(stream, table, staged.address(nodes), staged.address(items), &bases, blocks(work.shaped.len())?)?;
    Ok((outputs, staged))
}
