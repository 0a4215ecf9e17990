//! Which pages a pass reads, and which after them.

use super::block::Pass;
use super::pages::{Group, Laid, Tiled};
use super::products::Products;
use super::shape::PAGES;
use crate::attention::layout::BLOCK_TOKENS;
use crate::attention::{Page, plan};

impl<'p, P: Products, E: Tiled> Pass<'p, '_, P, E> {
    /// The pages of the group that begins at `base`, and how many there are; the last stands in for what follows it.
    pub(super) fn pages(&self, base: usize) -> ([Page<'p, E::Cell>; PAGES], usize) {
        let span = &self.task.spans[self.item.block.span];
        let n = (plan::seen(self.task, &self.item.block).end - base).div_ceil(BLOCK_TOKENS).min(PAGES);
        let page = |i: usize| {
            let first = base + i.min(n - 1) * BLOCK_TOKENS;
            self.task.page(span.block_of(first), self.item.block.kv_head)
        };
        ([0, 1, 2, 3].map(page), n)
    }

    /// The group of these pages, which begins at `base`.
    pub(super) fn opened<'g>(&'g self, pages: &'g [Page<'g, E::Cell>], base: usize) -> Group<'g, E::Cell> {
        let span = &self.task.spans[self.item.block.span];
        let first = |i: usize| base + i.min(pages.len() - 1) * BLOCK_TOKENS;
        let next =
            |i: usize| self.next_page(first(i)).unwrap_or(pages[i.min(pages.len() - 1)]).k.as_ptr().cast();
        Group {
            pages,
            next: [0, 1, 2, 3].map(next),
            kept: (span.end() - first(pages.len() - 1)).min(BLOCK_TOKENS),
            shape: &self.shape,
            local: &self.local,
            laid: if self.tiles > 2 { Laid::ForAll } else { Laid::Briefly },
        }
    }

    /// The page that is read a group's pages after that of `position`.
    fn next_page(&self, position: usize) -> Option<Page<'p, E::Cell>> {
        let (block, at) = plan::ahead(self.task, self.item, self.after, position)?;
        Some(self.task.page(self.task.spans[block.span].block_of(at), block.kv_head))
    }
}
