#pragma once

struct Shape {
  uint rows;
  uint columns;
};
