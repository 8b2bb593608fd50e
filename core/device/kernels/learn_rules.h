// The rules of row optimizers for which there are kernels: all that optimizer/kernels.cc makes.
#pragma once

#include "optimizer/adadelta_rule.h"
#include "optimizer/adagrad_rule.h"
#include "optimizer/adam_rule.h"
#include "optimizer/amsgrad_rule.h"
#include "optimizer/batch_softmax_rule.h"
#include "optimizer/dynamic_wd_adagrad_rule.h"
#include "optimizer/ftrl_rule.h"
#include "optimizer/group_adagrad_rule.h"
#include "optimizer/group_ftrl_rule.h"
#include "optimizer/momentum_rule.h"
#include "optimizer/moving_average_rule.h"
#include "optimizer/rmsprop_rule.h"
#include "optimizer/sgd_rule.h"

// Calls one of the three macros for each rule, with `argument`, a name and the type: PLAIN for an elementwise rule,
// SCALAR for one with state that all weights of a segment share, SEGMENT for a rule of the segment
// (optimizer/row_rule.h).
#define MONOLITH_ROW_RULES(argument, PLAIN, SCALAR, SEGMENT)                         \
  PLAIN(argument, sgd, SgdRule)                                                      \
  PLAIN(argument, adagrad, AdagradRule)                                              \
  PLAIN(argument, adadelta, AdadeltaRule)                                            \
  PLAIN(argument, ftrl, FtrlRule)                                                    \
  PLAIN(argument, momentum, MomentumRule<false>)                                     \
  PLAIN(argument, momentum_nesterov, MomentumRule<true>)                             \
  PLAIN(argument, moving_average, MovingAverageRule)                                 \
  PLAIN(argument, rmsprop, RmspropRule)                                              \
  SCALAR(argument, adam, AdamRule<false>)                                            \
  SCALAR(argument, adam_nesterov, AdamRule<true>)                                    \
  SCALAR(argument, amsgrad, AmsgradRule<false>)                                      \
  SCALAR(argument, amsgrad_nesterov, AmsgradRule<true>)                              \
  SCALAR(argument, dynamic_wd_adagrad, DynamicWdAdagradRule<false>)                  \
  SCALAR(argument, dynamic_wd_adagrad_decoupled, DynamicWdAdagradRule<true>)         \
  SCALAR(argument, batch_softmax, BatchSoftmaxRule)                                  \
  SEGMENT(argument, adagrad_run, AdagradRunRule)                                     \
  SEGMENT(argument, dynamic_wd_adagrad_run, DynamicWdAdagradRunRule<false>)          \
  SEGMENT(argument, dynamic_wd_adagrad_run_decoupled, DynamicWdAdagradRunRule<true>) \
  SEGMENT(argument, group_ftrl, GroupFtrlRule)                                       \
  SEGMENT(argument, group_adagrad, GroupAdagradRule)
